"""Digests of an application's own code: the files that a step's file imports, found without running them.

They are the files below the application's folder, beside the step's file, or in another folder of the module search
path that holds no installed packages. Comments, formatting and docstrings do not count.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.machinery import BYTECODE_SUFFIXES, EXTENSION_SUFFIXES, PathFinder, all_suffixes
from pathlib import Path
from typing import Any

from scanflow.backends.digests import MISSING, FileDigests, UnknownContentError
from scanflow.modules import is_library_file

_SUFFIXES = tuple(all_suffixes())
_COMPILED = (*BYTECODE_SUFFIXES, *EXTENSION_SUFFIXES)
_LIBRARY = frozenset(
    {"scanflow", "scanflow_agents", "scanflow_client", "scanflow_research", "scanflow_server", "scanflow_serving"}
)
_LOADERS = frozenset({"import_module", "__import__", "run_module", "run_path", "spec_from_file_location"})
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_READS_DOCSTRINGS = frozenset({"__doc__", "getdoc", "docopt"})


@dataclass(slots=True)
class _Source:
    """What one file says of the files it imports."""

    digest: str
    imports: list[tuple[int, tuple[str, ...]]] = field(default_factory=list)
    """Each with its number of leading dots; the last part may be a name in the module, or ``*``."""

    loads: list[int] = field(default_factory=list)
    """The lines that import by a name known only when they run."""

    defaults: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    """The texts in the defaults of each function's parameters."""

    texts: list[str] = field(default_factory=list)
    """Its texts, if it changes the module search path: folders may be among them."""


@dataclass(frozen=True, slots=True)
class TracedCode:
    """The own files that a step's code is in."""

    digests: Mapping[str, str]
    """What they say, by name."""

    read: Mapping[str, str]
    """The digests of their bytes, by path."""


class OwnCode:
    """The own code of an application. Each file is parsed once as long as it is unchanged. Not thread-safe."""

    def __init__(self, app_dir: Path, files: FileDigests) -> None:
        self._app_dir, self._files = app_dir, files
        self._sources: dict[str, _Source] = {}
        self._traced: dict[tuple[Any, ...], TracedCode] = {}

    def trace(
        self,
        file: Path | None,
        modules: Iterable[str],
        *,
        names: Iterable[str] = (),
        path: Sequence[Path] = (),
        installed: Sequence[Path] | None = None,
        trusting: bool = False,
    ) -> TracedCode:
        """Return the own files that a step's file and modules import, these included.

        Args:
            file: The step's file; None: it has none.
            modules: The dotted names of further modules; those that are not own ones are left out.
            names: Texts among which the names of further modules may be, each whole or split at the last dot.
            path: The step's own folders of the module search path.
            installed: The folders of the step's packages; None: this process' own packages.
            trusting: Whether imports that cannot be followed are known not to matter.

        Raises:
            UnknownContentError: a file imports by a name that is known only when it runs, or changes the module search
                path and imports what is not found.
        """
        modules, names = {*modules, *names}, sorted(names)
        described = (file, *sorted(modules), *names, *path, trusting)
        traced = self._traced.get(described)
        if traced is None or any(self._files.compute(Path(place)) != digest for place, digest in traced.read.items()):
            roots = [*([file.parent] if file else []), self._app_dir, *path, *_list_own_folders()]
            packages = [name for name in names if any((root / name.replace(".", "/")).is_dir() for root in roots)]
            modules |= {f"{package}.{name}" for package in packages for name in names}
            traced = self._traced[described] = self._trace(file, modules, dict.fromkeys(roots), installed, trusting)
        return traced

    def _trace(
        self,
        file: Path | None,
        modules: Iterable[str],
        roots: dict[Path, None],
        installed: Sequence[Path] | None,
        trusting: bool,
    ) -> TracedCode:
        imports: set[tuple[Path | None, tuple[str, ...]]] = {(None, tuple(module.split("."))) for module in modules}
        queue, sources, resolved = [file] if file else [], dict[Path, _Source](), set[tuple[Path, tuple[str, ...]]]()
        changes_path = False
        while True:
            for place in queue:
                source = sources[place] = self._read(place)
                if source.loads and not trusting:
                    raise UnknownContentError(
                        f"{self._name(place)}, line {source.loads[0]}, imports a module by a name known only when it "
                        "runs",
                        trustable=True,
                    )
                changes_path |= bool(source.texts)
                around = (*list(place.parents)[:3], self._app_dir)
                roots |= {folder / text: None for text in source.texts for folder in around if (folder / text).is_dir()}
                for dots, parts in source.imports:
                    if dots <= len(place.parents):
                        imports.add((place.parents[dots - 1] if dots else None, parts))
            wanted = {(root, parts) for package, parts in imports for root in ([package] if package else roots)}
            packages = {package for package, _ in imports if package}
            found: list[Path] = []
            for root, parts in wanted - resolved:
                found += _iterate_files(root, parts, in_package=root in packages)
            resolved |= wanted
            queue = [place for place in dict.fromkeys(found) if place not in sources]
            if not queue:
                break
        if changes_path and not trusting:
            absolute = sorted({parts[0] for package, parts in imports if package is None})
            _check_resolved(absolute, roots, installed)
        return TracedCode(
            {self._name(place): source.digest for place, source in sources.items()},
            {str(place): self._files.compute(place) for place in sources},
        )

    def list_default_texts(self, file: Path, function: str) -> dict[str, list[str]]:
        """Return the texts in the defaults of a function of a file, by parameter: names of files may be among them."""
        return self._read(file).defaults.get(function.rpartition(".")[2], {})

    def _is_own(self, file: Path) -> bool:
        return file.is_relative_to(self._app_dir) or not is_library_file(str(file.parent))

    def _name(self, file: Path) -> str:
        return str(file.relative_to(self._app_dir)) if file.is_relative_to(self._app_dir) else str(file)

    def _read(self, file: Path) -> _Source:
        content_digest = self._files.compute(file)
        if content_digest not in self._sources:
            try:
                content = file.read_bytes() if content_digest != MISSING else b""
            except OSError as error:
                raise UnknownContentError(f"{self._name(file)} cannot be read: {error.strerror}") from error
            is_source = self._is_own(file) and not file.name.endswith(_COMPILED)
            self._sources[content_digest] = _parse(content, content_digest) if is_source else _Source(content_digest)
        return self._sources[content_digest]


def _list_own_folders() -> list[Path]:
    """Return the folders of the module search path that hold neither installed packages nor the standard library."""
    folders = [Path(entry or ".").absolute() for entry in sys.path]
    return [folder for folder in folders if folder.is_dir() and not is_library_file(str(folder))]


def _iterate_files(root: Path, parts: Sequence[str], *, in_package: bool) -> Iterator[Path]:
    """Yield the files that an import of a dotted name from a folder runs."""
    if in_package:
        yield from _iterate_module_files(root / "__init__")
    elif parts[0] in _LIBRARY:
        return
    for part in parts:
        if part == "*":
            for child in sorted(root.iterdir()):
                yield from _iterate_files(root, [child.name.partition(".")[0]], in_package=True)
            return
        yield from _iterate_module_files(root / part)
        root /= part
        if not root.is_dir():
            return
        yield from _iterate_module_files(root / "__init__")


def _iterate_module_files(module: Path) -> Iterator[Path]:
    for suffix in _SUFFIXES:
        if (file := module.with_name(module.name + suffix)).is_file():
            yield file


def _parse(content: bytes, content_digest: str) -> _Source:
    """Return what a file says; of a file that Python cannot parse, its bytes count."""
    source = _Source("")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            tree = ast.parse(content)
        _collect(tree, source)
        _drop_docstrings(tree)
        source.digest = hashlib.sha256(ast.dump(tree).encode(errors="surrogatepass")).hexdigest()
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return _Source(content_digest)
    return source


def _collect(tree: ast.Module, source: _Source) -> None:
    texts, plain_loads = [], set[ast.AST]()
    loaders = set(_LOADERS)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            loaders |= {alias.asname for alias in node.names if alias.asname and alias.name in _LOADERS}
    changes_path = False
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                source.imports += [(0, tuple(alias.name.split("."))) for alias in names]
            case ast.ImportFrom(module=module, names=names, level=level):
                above = tuple(module.split(".")) if module else ()
                source.imports += [(level, (*above, alias.name)) for alias in names]
            case ast.Call(func=ast.Name() | ast.Attribute() as called, args=[ast.Constant(value=str(text)), *_]):
                if _get_name(called) in loaders - {"run_path", "spec_from_file_location"}:
                    plain_loads.add(called)
                    name = text.lstrip(".")
                    source.imports.append((len(text) - len(name), tuple(name.split("."))))
            case ast.Constant(value=str(text)) if text and len(text) < 256 and "\0" not in text:
                texts.append(text)
            case ast.FunctionDef(name=function, args=arguments):
                source.defaults[function] = _list_default_texts(arguments)
        if isinstance(node, ast.Name | ast.Attribute) and node not in plain_loads:
            if (name := _get_name(node)) in loaders:
                source.loads.append(node.lineno)
            in_sys = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "sys"
            changes_path |= (name == "path" and in_sys) or name == "addsitedir"
    source.texts = [*texts, "."] if changes_path else []
    source.loads.sort()


def _get_name(node: ast.Name | ast.Attribute) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr


def _list_default_texts(arguments: ast.arguments) -> dict[str, list[str]]:
    places = [*arguments.posonlyargs, *arguments.args]
    pairs = [*zip(reversed(places), reversed(arguments.defaults), strict=False)]
    pairs += [
        (place, default) for place, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if default
    ]
    return {
        place.arg: texts
        for place, default in pairs
        if (
            texts := [
                str(part.value)
                for part in ast.walk(default)
                if isinstance(part, ast.Constant) and type(part.value) is str
            ]
        )
    }


def _drop_docstrings(tree: ast.Module) -> None:
    """Drop docstrings, except those that code may read: of decorated functions, of subclasses, beside ``__doc__``."""
    nodes = list(ast.walk(tree))
    if any(_get_name(node) in _READS_DOCSTRINGS for node in nodes if isinstance(node, ast.Name | ast.Attribute)):
        return
    for node in nodes:
        if not isinstance(node, _DOCUMENTED) or ast.get_docstring(node, clean=False) is None:
            continue
        readers = [] if isinstance(node, ast.Module) else [ast.unparse(reader) for reader in node.decorator_list]
        is_step = all(reader.partition("(")[0].rpartition(".")[2] == "step" for reader in readers)
        if is_step and not (isinstance(node, ast.ClassDef) and (node.bases or node.keywords)):
            node.body[:1] = [] if len(node.body) > 1 else [ast.Pass()]


def _check_resolved(names: Iterable[str], roots: Iterable[Path], installed: Sequence[Path] | None) -> None:
    """Check that imported top-level modules are own files, or installed.

    Raises:
        UnknownContentError: one is neither: the changed search path has it.
    """
    for name in names:
        known = name in sys.stdlib_module_names or name in sys.builtin_module_names or name in _LIBRARY
        if known or any((root / name).is_dir() or any(_iterate_module_files(root / name)) for root in roots):
            continue
        if not _is_installed(name, installed):
            what = f"its code changes sys.path, and imports {name!r}, which was not found"
            raise UnknownContentError(what, trustable=True)


def _is_installed(name: str, installed: Sequence[Path] | None) -> bool:
    if installed is not None:
        return PathFinder.find_spec(name, [str(folder) for folder in installed]) is not None
    try:
        return importlib.util.find_spec(name) is not None
    except ValueError:  # a module without a spec: it is loaded
        return True

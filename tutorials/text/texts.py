"""Sentences about Python functions, with the topic of each: the documentation that comes with installed packages.

Python's own library (PSF licence) is what a help desk knew at first. The same topics in NumPy, SciPy, pandas and
scikit-learn (BSD) and requests (Apache 2) are written in other words. Nothing is downloaded.
"""

import inspect
import re
from functools import cache
from importlib import import_module

TOPICS = {
    "files": "os shutil pathlib tempfile glob zipfile tarfile gzip io csv configparser",
    "network": "socket ssl http.client http.server urllib.request smtplib ftplib ipaddress socketserver imaplib",
    "time": "datetime time calendar zoneinfo sched",
    "numbers": "math statistics fractions decimal random cmath",
    "text": "re string textwrap difflib unicodedata codecs gettext html.parser",
}
NEW_TOPICS = {
    "files": "pandas.io.api joblib",
    "network": "requests requests.sessions requests.models",
    "time": "pandas.tseries.offsets pandas.core.tools.datetimes",
    "numbers": "numpy.linalg numpy.fft scipy.special",
    "text": "numpy.strings pandas.core.strings.accessor sklearn.feature_extraction.text",
}


@cache
def read_sentences(new=False):
    """Return sentences and their topics: of Python's library, or of the packages that came later."""
    topics = {}
    for topic, modules in (NEW_TOPICS if new else TOPICS).items():
        for module in modules.split():
            for text in read_documentation(import_module(module)):
                topics.update(dict.fromkeys(split_sentences(text), topic))
    return tuple(topics), tuple(topics.values())


def read_documentation(module):
    """Yield the documentation of a module's functions and classes, and of the methods of these."""
    for name in sorted(vars(module)):
        thing = getattr(module, name)
        if name.startswith("_") or inspect.ismodule(thing) or not callable(thing):
            continue
        yield inspect.getdoc(thing)
        if inspect.isclass(thing):
            yield from (inspect.getdoc(part) for key, part in sorted(vars(thing).items()) if not key.startswith("_"))


def split_sentences(text):
    """Return the sentences of 5 to 40 words that stand before the first heading or example."""
    text = re.split(r"\n[A-Z][\w ]+\n-{3}|>>>", text or "")[0]
    paragraphs = [" ".join(part.split()) for part in re.split(r"\n\s*\n", text)]
    sentences = [part for paragraph in paragraphs for part in re.split(r"(?<=[.!?]) +(?=[A-Z])", paragraph)]
    return [sentence for sentence in sentences if 5 <= len(split_words(sentence)) <= 40]


def split_words(text):
    return re.findall(r"[a-z]{2,}", text.lower())

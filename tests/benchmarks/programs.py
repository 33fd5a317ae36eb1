"""The programs that are measured: the same work written for Scanflow, Metaflow and Prefect."""

from __future__ import annotations

import itertools


def scanflow_steps(length: int) -> str:
    return f"""
import scanflow as sf

@sf.step
def hello(n: int) -> int:
    return n + 1

nodes = [hello.options(name="s0").bind(0)]
for i in range(1, {length}):
    nodes.append(hello.options(name=f"s{{i}}").bind(nodes[-1]))

app = sf.Application(name="hello", team="bench", workflows=[sf.Workflow(name="hello", nodes=nodes)])
"""


def scanflow_scripts(length: int) -> str:
    """A chain of executors whose script, ``nothing.py`` beside this file, does nothing; run by ``scanflow run``."""
    return f"""
import scanflow as sf

nodes = [sf.Executor(name=f"s{{i}}", mainfile="nothing.py") for i in range({length})]
edges = [before >> after for before, after in zip(nodes, nodes[1:])]

app = sf.Application(name="hello", team="bench", workflows=[sf.Workflow(name="hello", nodes=nodes, edges=edges)])
"""


_IN_PROCESS = """
import json, os, time
import scanflow as sf

@sf.step(in_process=True)
def hello(n: int) -> int:
    return n + 1

@sf.step(in_process=True)
def numbers(n: int) -> list[int]:
    return list(range(n))

def seconds(nodes):
    app = sf.Application(name="hello", team="bench", workflows=[sf.Workflow(name="hello", nodes=nodes)])
    client = sf.Client(home=os.environ["SCANFLOW_HOME"])
    start = time.perf_counter()
    client.run(app)
    return time.perf_counter() - start

def chain(length):
    nodes = [hello.options(name="s0").bind(0)]
    for i in range(1, length):
        nodes.append(hello.options(name=f"s{i}").bind(nodes[-1]))
    return seconds(nodes)

def fan_out(width):
    first = numbers.options(name="numbers").bind(width)
    return seconds([first, hello.options(name="many").map(first)])

if __name__ == "__main__":
    chain(1)
"""


def scanflow_chain(length: int) -> str:
    return _IN_PROCESS + (
        f"    one, many = chain(1), chain({length} + 1)\n"
        f"    print(json.dumps({{'step_ms': (many - one) / {length} * 1000}}))\n"
    )


def scanflow_fan_out(width: int) -> str:
    return _IN_PROCESS + f"    print(json.dumps({{'fan_out_s': fan_out({width})}}))\n"


def scanflow_map(width: int) -> str:
    return f"""
import scanflow as sf

@sf.step(in_process=True)
def numbers(n: int) -> list[int]:
    return list(range(n))

@sf.step
def hello(n: int) -> int:
    return n + 1

first = numbers.bind({width})
nodes = [first, hello.map(first)]

app = sf.Application(name="hello", team="bench", workflows=[sf.Workflow(name="hello", nodes=nodes)])
"""


def scanflow_dag(layers: int, width: int) -> str:
    """``layers`` x ``width`` steps, each after two of the layer before: validated and planned, never run."""
    return f"""
import json, time
start = time.perf_counter()
import scanflow as sf
imported = time.perf_counter()

nodes, edges, before = [], [], []
for layer in range({layers}):
    this = []
    for place in range({width}):
        node = sf.Executor(name=f"s{{layer}}-{{place}}", mainfile="nothing.py", parameters={{"layer": layer}})
        for parent in {{place, (place + 1) % {width}}} if before else ():
            edges.append(before[parent] >> node)
        this.append(node)
    nodes += this
    before = this
app = sf.Application(name="large", team="bench", workflows=[sf.Workflow(name="large", nodes=nodes, edges=edges)])
sf.Client().plan(app)
done = time.perf_counter()
with open("/proc/self/status") as status:
    peak_kib = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
print(json.dumps({{"plan_s": done - imported, "plan_mib": peak_kib / 1024}}))
"""


def metaflow_chain(length: int) -> str:
    """A linear flow of ``length`` steps, each handing a number to the next; three is its least."""
    names = ["start", *(f"s{i}" for i in range(length - 2)), "end"]
    steps = "".join(
        f"    @step\n    def {name}(self):\n        self.n = {place}\n        self.next(self.{after})\n"
        for place, (name, after) in enumerate(itertools.pairwise(names))
    )
    return f"""
from metaflow import FlowSpec, step

class Hello(FlowSpec):
{steps}
    @step
    def end(self):
        pass

if __name__ == "__main__":
    Hello()
"""


def metaflow_fan_out(width: int) -> str:
    return f"""
from metaflow import FlowSpec, step

class Hello(FlowSpec):
    @step
    def start(self):
        self.numbers = list(range({width}))
        self.next(self.hello, foreach="numbers")

    @step
    def hello(self):
        self.n = self.input + 1
        self.next(self.join)

    @step
    def join(self, inputs):
        self.next(self.end)

    @step
    def end(self):
        pass

if __name__ == "__main__":
    Hello()
"""


def prefect_hello() -> str:
    return """
from prefect import flow, task

@task
def hello(n: int) -> int:
    return n + 1

@flow
def three() -> int:
    return hello(hello(hello(0)))

if __name__ == "__main__":
    three()
"""


_PREFECT = """
import json, time
from prefect import flow, task

@task
def hello(n: int) -> int:
    return n + 1

@flow
def chain(length: int) -> float:
    start = time.perf_counter()
    n = 0
    for _ in range(length):
        n = hello(n)
    return time.perf_counter() - start

@flow
def fan_out(width: int) -> list[int]:
    return hello.map(list(range(width))).result()

def seconds(run, size):
    start = time.perf_counter()
    run(size)
    return time.perf_counter() - start

if __name__ == "__main__":
    chain(1)
"""


def prefect_chain(length: int) -> str:
    """What a task of a chain costs, measured inside one process after a first flow has started the server.

    It is measured inside the flow: a flow's end takes a second of its own, in which the work of hundreds of tasks hides
    when a long flow is compared with a short one.
    """
    return _PREFECT + f"    print(json.dumps({{'step_ms': chain({length}) / {length} * 1000}}))\n"


def prefect_fan_out(width: int) -> str:
    return _PREFECT + f"    print(json.dumps({{'fan_out_s': seconds(fan_out, {width})}}))\n"

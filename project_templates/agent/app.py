"""A nightly workflow, and two agents: the watcher sees that it failed, the medic gives it more time and runs it again."""

import time

import scanflow as sf


@sf.step(timeout="2s")
def work(seconds: float = 4) -> str:
    time.sleep(seconds)
    return f"done in {seconds} s"


app = sf.Application(
    name="my-app",
    workflows=[sf.Workflow(name="nightly", nodes=[work.bind()])],
    agents=[
        sf.Agent(name="watcher", modules=["watcher.py"]),
        sf.Agent(name="medic", modules=["medic.py"]),
    ],
)

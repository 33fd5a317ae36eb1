"""An application of the two programs, without resource requests for cores and memory."""

import scanflow as sf

compute = sf.Executor(name="compute", mainfile="cpu_bound.py")
sort = sf.Executor(name="sort", mainfile="memory_hungry.py")

app = sf.Application(
    name="characterized", team="tutorials", workflows=[sf.Workflow(name="both", nodes=[compute, sort])]
)

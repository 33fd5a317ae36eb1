"""An application of the two programs, which says nothing yet of the cores and the memory that they need."""

import scanflow as sf

compute = sf.Executor(name="compute", mainfile="cpu_bound.py")
sort = sf.Executor(name="sort", mainfile="memory_hungry.py")

app = sf.Application(
    name="characterized", team="tutorials", workflows=[sf.Workflow(name="both", nodes=[compute, sort])]
)

"""An MPI job of two ranks. Compile it: mpicc -O2 -o pi pi.c. Run it: scanflow run app.py:job"""

import scanflow as sf

pi = sf.MPIWorkload(
    name="pi", mainfile="pi", n_tasks=2, profile="cpu", oversubscribe=True
)
app = sf.Application(
    name="my-app", workflows=[sf.Workflow(name="job", type="mpi", nodes=[pi])]
)

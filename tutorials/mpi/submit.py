"""Listing 6.1 of the thesis: define MPI jobs in Python, and submit them. ``python submit.py [local|volcano]``."""

import asyncio
import sys

from scanflow.client import ScanflowClient, ScanflowDeployerClient

deployer = sys.argv[1] if len(sys.argv) > 1 else "local"
client = ScanflowClient()
deployerClient = ScanflowDeployerClient(user_type="local", deployer=deployer)


# define MPI job
def newWorkflow(i, benchmark, expstr, nTasks, nNodes):
    mpi = client.ScanflowMPIWorkload(
        name=f"{benchmark}", mainfile=f"{benchmark}-{expstr}.yaml", nTasks=nTasks, nNodes=nNodes
    )
    return client.ScanflowWorkflow(type="mpi", name=f"{benchmark}{i}", nodes=[mpi], output_dir="/home")


# submit job to Scanflow
async def runWorkflow(i, build_app):
    return await deployerClient.run_workflow(
        app_name="mpi", team_name="dataengineer", workflow=build_app.workflows[i], app_dir="."
    )


app = client.ScanflowApplication(
    app_name="mpi",
    app_dir=".",
    team_name="dataengineer",
    workflows=[newWorkflow(0, "hpccdgemm", "exp1-baseline", 16, 4)],
)
build_app = client.build_ScanflowApplication(app=app, trackerPort=46672)
run = asyncio.run(runWorkflow(0, build_app))
print(f"{run.name}: {run.state}")

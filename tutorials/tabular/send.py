"""Send applicants to the service: ``python send.py 18 45`` young people, ``python send.py 50 90`` old people."""

import sys

from app import people

import scanflow as sf

x, _ = people(600, ages=(float(sys.argv[1]), float(sys.argv[2])), seed=int(sys.argv[3]) if len(sys.argv) > 3 else 1)
for at in range(0, len(x), 20):
    sf.Client().predict("serve", {name: x[name].to_numpy()[at : at + 20] for name in x})

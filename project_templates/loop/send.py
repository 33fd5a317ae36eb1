"""Send 600 applicants to the service: python send.py 18 45 sends young people, python send.py 50 90 old people."""

import sys

import scanflow as sf

from app import draw_loans

ages = (float(sys.argv[1]), float(sys.argv[2]))
table = draw_loans(600, ages, seed=int(sys.argv[3]) if len(sys.argv) > 3 else 1)
for at in range(0, len(table), 20):
    sf.Client().predict("serve", table[at : at + 20])
print(f"sent {len(table)} applicants")

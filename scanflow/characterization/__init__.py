"""The resource needs of a program: its scaling with cores, and the memory below which it is killed.

Source: Wang et al., Container Resource Allocation versus Performance of Data-intensive Applications on Different Cloud
Servers, 5.1 and 5.2.
"""

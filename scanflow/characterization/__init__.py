"""What a program needs: how it runs on few and many cores, and below which memory it is killed (Wang et al., Container
Resource Allocation versus Performance of Data-intensive Applications on Different Cloud Servers, 5.1 and 5.2)."""

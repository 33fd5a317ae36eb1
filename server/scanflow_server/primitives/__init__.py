"""The operations of thesis Table 5.4, carried out: what an action of an agent does to workflows and services."""

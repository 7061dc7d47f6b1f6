"""Tasks on a Dask cluster, retried on other workers until they are done."""

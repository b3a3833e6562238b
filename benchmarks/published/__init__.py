"""Published kernel times as data, and the cost model against them.

times.json   measured points that others published: source, GPU, shapes, dtype, implementation, way of timing
predict.py   the same work as programs and library calls of the cost model
python -m benchmarks.published    the error by kind and GPU, kept in benchmarks/results/published.json and docs

Each source is in one half: constants may be fitted on the one, the other only judges.
"""

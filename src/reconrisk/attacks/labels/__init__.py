"""Labels of records, inferred from an update before any search.

Read ``output_layer.py`` (the evidence about labels in an update), then ``infer.py`` (labels and their counts), then
``separate_records.py`` (records of a small batch told apart by the same gradient).
"""

"""Labels of records, inferred from an update before any search.

Read ``infer.py`` (the evidence in the gradient of the output layer, labels and their counts), then
``separate_records.py`` (records of a small batch told apart by the same gradient).
"""

"""Inference of labels from an update, before any search for records.

Read ``infer.py`` (the evidence in the gradient of the output layer, labels and their counts), then
``separate_records.py`` (single records of a small batch, separated by the same gradient).
"""

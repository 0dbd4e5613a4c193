"""Values as files: JSON with stable tags, and the base class of all results.

Read ``serialization`` (values to JSON and back), then ``result`` (base class, ``save`` and ``load``). ``links`` has the
tables that upper layers fill, ``text_table`` formats tables, ``files`` writes files atomically.
"""

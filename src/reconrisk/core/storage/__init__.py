"""Values as files: JSON with stable tags, and the base of everything that a study or a calculator returns.

Read ``serialization`` (values to JSON and back), then ``result`` (the base, ``save`` and ``load``). ``links`` has the
tables that upper layers fill, ``text_table`` lays out tables, ``files`` writes whole files or none.
"""

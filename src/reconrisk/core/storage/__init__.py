"""Values as files: JSON with stable tags, and the base of everything that a study or a calculator returns.

Read ``serialization`` (values to JSON and back), then ``result`` (``save``, ``load``), ``files`` (whole or not at all).
"""

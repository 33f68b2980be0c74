import importlib, importlib.metadata, importlib.util
print(importlib.util.find_spec("json").origin.endswith("json/__init__.py"), importlib.util.find_spec("nope"), importlib.import_module("json.decoder").__name__)
print(importlib.metadata.version("numpy") == __import__("numpy").__version__)
import json
print(importlib.reload(json) is json)

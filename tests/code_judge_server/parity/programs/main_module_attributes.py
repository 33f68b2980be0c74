"""Doc string."""

import sys

print(__name__, __file__, __doc__, __package__, __spec__, __cached__, __annotations__)
print(type(__loader__).__name__, __loader__.name, __loader__.path, __builtins__)
print(list(globals()))
print(sys.modules["__main__"].__dict__ is globals())
import __main__

print(__main__ is sys.modules["__main__"], __main__)

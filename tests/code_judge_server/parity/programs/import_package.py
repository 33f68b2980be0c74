import os

os.makedirs("pkg/inner")
open("pkg/__init__.py", "w").write("from . import inner\n__all__ = ['inner']\n")
open("pkg/inner/__init__.py", "w").write("from ..data import TABLE\n")
open("pkg/data.py", "w").write("TABLE = {1: 'one'}\n")
from pkg import *

print(inner.TABLE, inner.__name__, inner.__package__)

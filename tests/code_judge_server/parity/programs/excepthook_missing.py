import sys

del sys.excepthook
raise KeyError("original")

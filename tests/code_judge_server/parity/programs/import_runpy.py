import runpy

open("script.py", "w").write("import sys\nprint(__name__, sys.argv)\nRESULT = 7\n")
print(runpy.run_path("script.py", run_name="__main__")["RESULT"])
import sys

print(sys.modules["__main__"].__file__)

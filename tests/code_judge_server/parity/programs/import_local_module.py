import os, sys

with open("helper_module.py", "w") as file:
    file.write(
        "import sys\nVALUE = 41\nprint(__name__, __file__, 'imported')\ndef fail():\n    raise LookupError('from helper')\n"
    )
import helper_module

print(helper_module.VALUE + 1, os.path.exists("__pycache__"))
helper_module.fail()

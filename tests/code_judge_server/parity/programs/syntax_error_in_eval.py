code = "1 +\n* 2"
try:
    eval(code)
except SyntaxError as error:
    print(error, error.filename, error.lineno, error.offset, error.text)
compile("def f(:", "generated.py", "exec")

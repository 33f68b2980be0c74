import contextlib, io
@contextlib.contextmanager
def region(name):
    print("in", name)
    try: yield name
    except ValueError as error: print("swallowed", error)
    finally: print("out", name)
with region("a") as a, region("b"):
    raise ValueError("x")
with contextlib.redirect_stdout(io.StringIO()) as out:
    print("hidden")
print(repr(out.getvalue()))
with contextlib.suppress(ZeroDivisionError): 1 / 0
with contextlib.ExitStack() as stack:
    stack.callback(print, "callback")
    stack.enter_context(region("c"))
    raise KeyError("through")

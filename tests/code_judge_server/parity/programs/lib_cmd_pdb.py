import pdb, sys
sys.stdin = __import__("io").StringIO("p x\nw\nn\nc\n")
def f():
    x = 5
    pdb.Pdb(stdin=sys.stdin, stdout=sys.stdout).set_trace()
    return x + 1
print(f())

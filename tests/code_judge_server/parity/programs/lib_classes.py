class Meta(type):
    def __new__(mcls, name, bases, space, **kwargs):
        print("making", name, kwargs)
        return super().__new__(mcls, name, bases, space)
class A(metaclass=Meta, flag=1):
    def __init_subclass__(cls): print("subclass", cls.__name__)
    def __getattr__(self, name): return f"<{name}>"
    def __set_name__(self, owner, name): print("named", name)
class B(A):
    member = A()
    @property
    def p(self): return super().missing if False else "p"
print(B().anything, B.mro(), B().p, B.__qualname__, repr(B))

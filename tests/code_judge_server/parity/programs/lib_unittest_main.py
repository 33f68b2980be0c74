import unittest
class Tests(unittest.TestCase):
    def test_good(self): self.assertTrue(True)
if __name__ == "__main__":
    unittest.main(verbosity=0, exit=False, buffer=True)
    print("after")

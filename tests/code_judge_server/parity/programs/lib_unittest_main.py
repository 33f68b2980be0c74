import io
import unittest
class Tests(unittest.TestCase):
    def test_good(self): self.assertTrue(True)
    def test_bad(self): self.assertIn(1, [])
if __name__ == "__main__":
    runner = unittest.TextTestRunner(stream=io.StringIO())
    program = unittest.main(verbosity=0, exit=False, testRunner=runner)
    print(program.result)
    unittest.main(testRunner=runner)
    print("never")

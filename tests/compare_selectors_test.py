#!/usr/bin/env python3
"""compare_selectors_test.py HEADWAY: the comparison of selectors prints its table and draws it."""
import pathlib
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent


def compare(*arguments):
    command = [sys.executable, ROOT / "scripts/compare_selectors.py", HEADWAY,
               ROOT / "models/demo", ROOT / "examples/document.txt", "--context", "1024",
               "--windows", "1", "--tokens", "8", "--sink", "16", "--recent", "64", *arguments]
    return subprocess.run(command, capture_output=True, text=True)


class CompareSelectors(unittest.TestCase):
    def test_prints_and_draws(self):
        with tempfile.TemporaryDirectory() as folder:
            picture = pathlib.Path(folder) / "picture.svg"
            done = compare("--selectors", "pages,oracle", "--shares", "2,4", "--svg", picture,
                           "--", "--device", "cpu", "--sparse-from", "0")
            self.assertEqual(done.returncode, 0, done.stderr)
            rows = [[cell.strip() for cell in line.strip("|").split("|")]
                    for line in done.stdout.splitlines() if line.startswith("|")]
            self.assertEqual([row[:2] for row in rows[2:6]],
                             [["pages", "1/4"], ["pages", "1/2"],
                              ["oracle", "1/4"], ["oracle", "1/2"]])
            self.assertIn("mean KL", rows[0][2])
            for row in rows[2:6]:
                self.assertGreaterEqual(float(row[2].split()[0]), 0.0)
            root = xml.etree.ElementTree.parse(picture).getroot()
            said = ["".join(text.itertext()) for text in root.iter() if text.tag.endswith("text")]
            for text in ("pages", "oracle", "1/2", "1/4"):
                self.assertIn(text, said)

    def test_says_what_is_wrong(self):
        done = compare("--selectors", "pages", "--shares", "16")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("1/16 of 1024 keys is less than sink and recent keys", done.stderr)


if __name__ == "__main__":
    HEADWAY = sys.argv.pop(1)
    unittest.main()

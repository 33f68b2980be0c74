"""Picture of docs/dashboard.md: the overview of a run in the light theme.

python -m benchmarks.seeing.dashboard_picture RUN_DIR
"""

import argparse
import shutil
from pathlib import Path

from benchmarks.seeing.dashboard import serving

PICTURE = Path(__file__).parents[2] / "docs" / "dashboard.png"


def main() -> None:
    """Write the picture."""
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_dir", type=Path)
    with serving(parser.parse_args().run_dir) as (address, _, _), sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium") or shutil.which("google-chrome"), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": 1280, "height": 800}, color_scheme="light")
        page.goto(address)
        page.wait_for_selector(".chart canvas")
        page.screenshot(path=PICTURE)
        browser.close()


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Types a word into the search of the site, and fails unless it shows a page.

Usage: search.py ADDRESS WORD PAGE. Called by: tests/packages/site.sh, with tools/python-env's
Python.
"""

import sys

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait


def main() -> int:
    address, word, page = sys.argv[1:]
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1400,1000"):
        options.add_argument(flag)
    browser = webdriver.Chrome(options, webdriver.ChromeService("/usr/bin/chromedriver"))
    try:
        browser.get(address)
        field = browser.find_element(By.CSS_SELECTOR, "input.md-search__input")
        field.click()
        field.send_keys(word)
        shown = f".md-search-result__link[href*='{page}']"
        WebDriverWait(browser, 60).until(lambda b: b.find_elements(By.CSS_SELECTOR, shown))
        return 0
    finally:
        browser.quit()


if __name__ == "__main__":
    sys.exit(main())

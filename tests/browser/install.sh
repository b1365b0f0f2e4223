#!/bin/sh
# Have a Chromium for the tests of the report page: the one that is here, else the system's
# package, else Playwright's own. Says so if there is none: the tests then fail, and tell why.
playwright=$1
for name in chromium chromium-browser google-chrome google-chrome-stable chrome; do
    command -v "$name" >/dev/null && exit 0
done
[ -n "$LEGROOM_BROWSER" ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "Installing Chromium for the tests of the report page (once) …"
    export DEBIAN_FRONTEND=noninteractive
    install="apt-get install --quiet --yes --no-install-recommends chromium fonts-dejavu-core"
    { $install || { apt-get update --quiet && $install; }; } >/dev/null 2>&1 && exit 0
fi
ls "${PLAYWRIGHT_BROWSERS_PATH:-$HOME/.cache/ms-playwright}"/chromium* >/dev/null 2>&1 && exit 0
echo "Fetching Playwright's Chromium for the tests of the report page (once) …"
timeout 300 "$playwright" install chromium >/dev/null 2>&1 && exit 0
echo "No Chromium could be installed: the tests of the report page will fail." >&2
echo "Install it (apt-get install chromium), or set LEGROOM_BROWSER=/path/to/chromium." >&2

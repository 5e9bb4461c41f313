#!/usr/bin/env bash
# Opens a page of `ginlab report` in Chromium: light, dark, phone-sized and printed.
#
#   scripts/report-check.sh [PAGE.html]      [default: target/report/report.html]
#
# Writes screenshots and a PDF to the directory of the page. Exit codes: 0 ok or skipped (no Chromium), 1 console
# errors, network requests or horizontal scrolling, 2 no such page.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
page=$(realpath "${1:-target/report/report.html}")
[[ -r $page ]] || { echo "no page $page; run make report" >&2; exit 2; }
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)
[[ -n $browser ]] || { echo "skipped: no chromium here (apt-get install chromium)"; exit 0; }
out=$(dirname "$page")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

# An unreachable proxy blocks all requests; the requests of the page are counted below.
chromium() {
    timeout 120 "$browser" --headless --no-sandbox --disable-gpu --hide-scrollbars --no-first-run --disable-extensions \
        --user-data-dir="$work/profile" --proxy-server=127.0.0.1:9 --allow-file-access-from-files --enable-logging=stderr --v=0 \
        "$@" 2>>"$work/log"
}
# Chromium's window cannot be as narrow as a phone, but a frame can.
frame() { # FILE WIDTH HEIGHT
    printf '<!DOCTYPE html><title>-</title><body style="margin:0"><iframe id=f src="file://%s" style="border:0" width=%s height=%s></iframe>
<script>onload = () => {
    const fetched = f.contentWindow.performance.getEntriesByType("resource").length;
    document.title = "width " + f.contentDocument.documentElement.scrollWidth + " of " + f.clientWidth + " fetched " + fetched;
}</script>' \
        "$page" "$2" "$3" >"$1"
}

chromium --window-size=1280,3200 --screenshot="$out/light.png" "file://$page" >/dev/null
chromium --window-size=1280,3200 --blink-settings=preferredColorScheme=0 --screenshot="$out/dark.png" "file://$page" >/dev/null
frame "$work/phone.html" 390 3200
chromium --window-size=600,3200 --screenshot="$work/phone.png" "file://$work/phone.html" >/dev/null
cp "$work/phone.png" "$out/phone.png"
chromium --no-pdf-header-footer --print-to-pdf="$out/print.pdf" "file://$page" >/dev/null
for width in 390 768 1280; do
    frame "$work/frame.html" "$width" 900
    title=$(chromium --window-size=1400,900 --dump-dom "file://$work/frame.html" | grep -o 'width [0-9]* of [0-9]* fetched [0-9]*' | head -n 1 || true)
    read -r _ found _ allowed _ fetched <<<"$title"
    if [[ -z ${found:-} || $found -gt $allowed || $fetched -gt 0 ]]; then
        echo "FAILED: at $width pixels: ${title:-the page did not load} (too wide, or a network request)"
        failures=$((failures + 1))
    fi
done
if grep 'CONSOLE' "$work/log" >"$work/errors"; then
    echo "FAILED: console of the browser:"
    sort -u "$work/errors" | head -n 20
    failures=$((failures + 1))
fi
echo "for inspection: $out/light.png $out/dark.png $out/phone.png $out/print.pdf"
((failures == 0)) && echo "ok: $page, $(stat -c %s "$page") bytes"
exit $((failures > 0))

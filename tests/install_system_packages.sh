#!/usr/bin/env bash
# Installs the system packages that some tests need (see tests/requirements.py). Where it may not, it says what is missing.
set -euo pipefail

packages=()
[ -d /usr/share/datasets/fashion-mnist ] || packages+=(dataset-fashion-mnist) # real images for the slow tests
command -v chromium chromium-browser google-chrome > /dev/null || packages+=(chromium fonts-liberation) # opens the reports
[ ${#packages[@]} -gt 0 ] || exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then as_root=(sudo -n); fi
if command -v apt-get > /dev/null && "${as_root[@]}" true 2> /dev/null; then
  echo "Installing ${packages[*]}, which some tests need"
  "${as_root[@]}" apt-get update -qq
  DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${packages[@]}" > /dev/null
else
  echo "Some tests will be skipped. To run them, install: ${packages[*]}"
fi

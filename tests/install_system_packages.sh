#!/usr/bin/env bash
# Install the system packages that some tests need (see tests/requirements.py), or print what to install.
set -euo pipefail

missing() {
  [ -d /usr/share/datasets/fashion-mnist ] || echo "dataset-fashion-mnist" # images for slow tests
  command -v chromium chromium-browser google-chrome > /dev/null || echo "chromium fonts-liberation" # opens reports
}

if [ -z "$(missing)" ]; then exit 0; fi

as_root=(env)
if [ "$(id -u)" -ne 0 ]; then as_root=(sudo -n); fi
if command -v apt-get > /dev/null && "${as_root[@]}" true 2> /dev/null; then
  echo "Installing system packages for tests:" $(missing)
  "${as_root[@]}" apt-get update -qq > /dev/null || true # the packages may be known already
  while read -r packages; do # one after the other: a distribution may have only some of them
    # shellcheck disable=SC2086 # a line is a list of packages
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $packages \
      > /dev/null < /dev/null || true
  done < <(missing)
fi

if [ -n "$(missing)" ]; then echo "Some tests will be skipped. To run them, install:" $(missing); fi

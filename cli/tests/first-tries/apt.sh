# needs: apt-get dpkg dpkg-deb dpkg-scanpackages python3 curl unshare
# A package is made, served, installed and removed. $1 is an empty folder.
# Nothing of the machine changes: what is written lies over it, in a mount namespace.
[ -n "$INSIDE" ] || INSIDE=1 exec unshare -m --propagation private bash "$0" "$1"
cd "$1" && mount -t tmpfs none "$1" && cd "$1" && mkdir -p new work pack/DEBIAN pack/usr/bin repository /etc/apt || exit 1
mount -t tmpfs none /var && mount -t tmpfs none /etc/apt || exit 1
mount -t overlay none -o "lowerdir=/usr/bin,upperdir=$1/new,workdir=$1/work" /usr/bin || exit 1
mkdir -p /var/lib/dpkg/{info,updates} /var/lib/apt/lists/partial /var/cache/apt/archives/partial /var/log/apt /var/tmp
touch /var/lib/dpkg/status
printf '%s\n' 'Package: freehold-greeting' 'Version: 1.0' 'Architecture: all' 'Maintainer: none <none@example.org>' \
	'Description: says hello' >pack/DEBIAN/control
printf '#!/bin/sh\necho "configured with $1"\n' >pack/DEBIAN/postinst
printf '#!/bin/sh\necho greetings\n' >pack/usr/bin/greeting
chmod 755 pack/DEBIAN/postinst pack/usr/bin/greeting
# The size of the package does not depend on the time of its files.
SOURCE_DATE_EPOCH=1700000000 dpkg-deb --root-owner-group -b pack repository/greeting.deb
(cd repository && dpkg-scanpackages . 2>/dev/null >Packages && exec python3 -m http.server -b 127.0.0.1 8124 >/dev/null 2>&1) &
until curl -sf http://127.0.0.1:8124/Packages >/dev/null; do sleep 0.2; done
echo 'deb [trusted=yes] http://127.0.0.1:8124 ./' >/etc/apt/sources.list
apt() { DEBIAN_FRONTEND=noninteractive apt-get -o APT::Sandbox::User=root "$@" 2>&1; }
apt update | grep -c '^Get:'
apt install -y freehold-greeting | grep -v '^Get:\|^Fetched\|debconf'
greeting
dpkg -l freehold-greeting | tail -n 1
apt remove -y freehold-greeting | tail -n 1
ls /usr/bin/greeting 2>&1
kill $!

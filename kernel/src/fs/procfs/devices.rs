//! /proc/sys/net: settings of network devices. This system is no router, so most cannot be changed.

use freehold_collections::Arc;

use super::settings::{may_set_network, parse_number};
use crate::fs::generated::{Generate, Text};
use crate::fs::pseudo::PseudoDir;
use crate::task;
use crate::task::namespaces::network::ConfigTag;
use crate::{Errno, Result};

/// The names of [`ConfigTag::ALL`].
const DEVICES: [&str; ConfigTag::ALL.len()] = ["all", "default", "lo", "eth0"];

/// Adds the settings to /proc, whose root is `root`.
pub(super) fn fill(root: &Arc<PseudoDir>) {
    let net = root.dirs("sys/net");
    for (device, which) in DEVICES.into_iter().zip(ConfigTag::ALL) {
        let conf = net.dirs("ipv4").dirs("conf").dirs(device);
        for name in ["forwarding", "rp_filter", "accept_redirects", "send_redirects", "arp_ignore"] {
            conf.constant(name, "0");
        }
        conf.generated("tag", 0o666, Tag(which));
        let conf = net.dirs("ipv6").dirs("conf").dirs(device);
        for name in ["disable_ipv6", "forwarding", "accept_ra", "accept_redirects"] {
            conf.constant(name, "0");
        }
    }
}

/// net.ipv4.conf.DEVICE.tag of the reader's network namespace: a number that only programs use.
struct Tag(ConfigTag);

impl Generate for Tag {
    fn show(&self, text: &mut Text) -> Result<()> {
        writeln!(text, "{}", task::current().process().namespaces().network.tag(self.0));
        Ok(())
    }

    fn may_write(&self) -> Result<()> {
        may_set_network()
    }

    fn store(&self, bytes: &[u8]) -> Result<()> {
        may_set_network()?;
        let (digits, sign) = match bytes.trim_ascii().strip_prefix(b"-") {
            Some(digits) => (digits, -1),
            None => (bytes, 1),
        };
        let value = i64::try_from(parse_number(digits)?).ok().map(|value| value * sign);
        let value = value.and_then(|value| i32::try_from(value).ok()).ok_or(Errno::EINVAL)?;
        task::current().process().namespaces().network.set_tag(self.0, value);
        Ok(())
    }
}

//! Where a request comes from.

use std::net::{IpAddr, Ipv6Addr};

/// The address of a request's connection. A proxy's address counts for all its clients: what it says of them
/// (`X-Forwarded-For`) could be invented.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Peer(IpAddr);

impl Peer {
    /// Its key among others.
    pub(crate) fn address(self) -> IpAddr {
        self.0
    }

    /// The key of an address. An IPv6 network of 64 bits counts as one address, because one customer has all of it.
    pub fn new(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V6(v6) => {
                let s = v6.segments();
                IpAddr::V6(Ipv6Addr::new(s[0], s[1], s[2], s[3], 0, 0, 0, 0))
            }
            v4 => v4,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_in_a_network_are_one() {
        let peer = |text: &str| Peer::new(text.parse().unwrap());
        assert_eq!(peer("2001:db8:1:2::1"), peer("2001:db8:1:2:ffff::9"));
        assert_ne!(peer("2001:db8:1:2::1"), peer("2001:db8:1:3::1"));
        assert_eq!(peer("::ffff:1.2.3.4"), peer("1.2.3.4"));
        assert_ne!(peer("1.2.3.4"), peer("1.2.3.5"));
    }
}

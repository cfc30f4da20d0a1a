//! Where HTTP requests may go: one policy for `wasi:http`, the `http` executor, webhooks and fetched scripts.
//!
//! Addresses that are not public (private, loopback, link-local with the clouds' metadata services, carrier NAT,
//! multicast, documentation, and all of these wrapped into IPv6) are refused unless the operator listed them. A name is
//! resolved once, *all* its addresses are checked, and the connection goes to one of them: no second answer of the DNS
//! server (rebinding) is ever requested. Redirects are either not followed, or checked like the first address. Proxies
//! of the environment are not used: behind one, the policy could check nothing.

use bytes::Bytes;
use heddle_domain::Chain;
use heddle_domain::state::NOT_GRANTED;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use url::{Host, Url};

/// How long connecting may take, including the look-up of the name.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How many redirects are followed.
pub const MAX_REDIRECTS: usize = 5;
/// How many unused connections are kept for one host.
pub(crate) const MAX_IDLE_PER_HOST: usize = 4;
/// How long they are kept.
pub(crate) const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// The option of a node that can allow a refused request, as the message of the refusal names it.
pub const ALLOW_PRIVATE: &str = "`--allow-private`";

/// Why an address is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The address is not public.
    #[error(
        "{host} has the address {address}, which is not public; the operator of the node can allow it with {}",
        ALLOW_PRIVATE
    )]
    Private {
        /// As it was requested.
        host: String,
        address: IpAddr,
    },
    /// The operator allowed the name at other ports only.
    #[error("{} allows {host} only with another port", ALLOW_PRIVATE)]
    Port {
        /// As it was requested, with the port.
        host: String,
    },
    /// The task has no grant for it.
    #[error("{}host {host}: it is not in the task's `allow_hosts`", NOT_GRANTED)]
    NotGranted {
        /// As it was requested, with the port.
        host: String,
    },
    /// Not an `http` or `https` address with a host.
    #[error("{0} is not an http or https address")]
    NotHttp(String),
    /// The name has no address.
    #[error("{host} cannot be resolved: {reason}")]
    Unresolved {
        host: String,
        /// What the resolver said.
        reason: String,
    },
}

/// Which addresses may be reached.
#[derive(Clone, Debug, Default)]
pub struct OutboundPolicy {
    exceptions: Arc<[Exception]>,
    allow_private: bool,
    names: Names,
}

/// Returns the addresses of a name.
type Lookup = dyn Fn(&str) -> Vec<IpAddr> + Send + Sync;

/// Resolves names: the system's resolver, unless a test replaces it.
#[derive(Clone, Default)]
struct Names(Option<Arc<Lookup>>);

impl std::fmt::Debug for Names {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() { "given" } else { "the system's" })
    }
}

impl Names {
    /// All addresses of a name, from one request.
    async fn look_up(&self, name: &str, port: u16) -> std::io::Result<Vec<SocketAddr>> {
        match &self.0 {
            Some(lookup) => Ok(lookup(name)
                .into_iter()
                .map(|address| SocketAddr::new(address, port))
                .collect()),
            None => Ok(tokio::net::lookup_host((name, port)).await?.collect()),
        }
    }
}

#[derive(Clone, Debug)]
enum Exception {
    Host(HostPattern),
    Network { base: IpAddr, prefix: u8 },
}

impl OutboundPolicy {
    /// Public addresses, and of the others those listed: names (`*.internal` too), addresses, networks (`10.0.0.0/8`).
    /// A name or address with a port is allowed at that port only. Those of the clouds' metadata services have to be
    /// listed as addresses or networks.
    pub fn new(private_hosts: &[String]) -> Result<Self, String> {
        let exceptions = private_hosts
            .iter()
            .map(|text| parse_exception(text))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            exceptions,
            allow_private: false,
            names: Names::default(),
        })
    }

    /// The same, but `lookup` resolves names instead of the system's resolver.
    pub fn with_names(mut self, lookup: impl Fn(&str) -> Vec<IpAddr> + Send + Sync + 'static) -> Self {
        self.names = Names(Some(Arc::new(lookup)));
        self
    }

    /// The same with private addresses allowed (a channel's `allow_private`), except those of the clouds' metadata
    /// services: nothing there receives messages. It is for the host that an administrator wrote down; redirects of
    /// that host are checked by the policy without this.
    pub fn allowing_private(&self) -> Self {
        Self {
            exceptions: Arc::clone(&self.exceptions),
            allow_private: true,
            names: self.names.clone(),
        }
    }

    /// Whether a request to this address is allowed, as far as that is known without resolving its name. (The client's
    /// resolver checks the rest; reqwest does not call it for numeric addresses.)
    pub fn check_url(&self, url: &Url) -> Result<(), Refused> {
        if !matches!(url.scheme(), "http" | "https") {
            return Err(Refused::NotHttp(url.scheme().to_owned()));
        }
        let port = url.port_or_known_default();
        match url.host() {
            Some(Host::Ipv4(address)) => self.check_at(&address.to_string(), IpAddr::V4(address), port),
            Some(Host::Ipv6(address)) => self.check_at(&address.to_string(), IpAddr::V6(address), port),
            Some(Host::Domain(name)) if !name.is_empty() => match self.is_for_other_ports(name, port) {
                true => Err(Refused::Port {
                    host: format!("{name}:{}", port.unwrap_or_default()),
                }),
                false => Ok(()),
            },
            _ => Err(Refused::NotHttp(url.to_string())),
        }
    }

    /// Whether a name is listed with ports, and this is none of them. Checked before the name is resolved, because the
    /// resolver is not told the port.
    fn is_for_other_ports(&self, name: &str, port: Option<u16>) -> bool {
        let listed = || {
            self.exceptions.iter().filter_map(|exception| match exception {
                Exception::Host(pattern) if pattern.matches_host(name) => Some(pattern.port),
                _ => None,
            })
        };
        !self.allow_private && listed().next().is_some() && !listed().any(|own| own.is_none() || own == port)
    }

    /// Whether this address may be reached under this name, at any port.
    pub fn check(&self, host: &str, address: IpAddr) -> Result<(), Refused> {
        self.check_at(host, address, None)
    }

    fn check_at(&self, host: &str, address: IpAddr, port: Option<u16>) -> Result<(), Refused> {
        let address = unwrapped(address);
        let metadata = is_metadata(address);
        let listed = || {
            self.exceptions.iter().any(|exception| match exception {
                // `*.internal` does not include `metadata.google.internal`.
                Exception::Host(pattern) => {
                    !metadata
                        && pattern.matches_host(host)
                        && (port.is_none() || pattern.port.is_none_or(|own| Some(own) == port))
                }
                Exception::Network { base, prefix } => contains(*base, *prefix, address),
            })
        };
        let allowed = !metadata && (is_public(address) || self.allow_private);
        if allowed || listed() {
            return Ok(());
        }
        Err(Refused::Private {
            host: host.to_owned(),
            address,
        })
    }

    /// The addresses of a host, all of them checked.
    pub async fn resolve(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, Refused> {
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        if let Ok(address) = bare.parse::<IpAddr>() {
            self.check(bare, address)?;
            return Ok(vec![SocketAddr::new(address, port)]);
        }
        let unresolved = |reason: String| Refused::Unresolved {
            host: host.to_owned(),
            reason,
        };
        let addresses = tokio::time::timeout(CONNECT_TIMEOUT, self.names.look_up(bare, port))
            .await
            .map_err(|_| unresolved("no answer in time".into()))?
            .map_err(|error| unresolved(error.to_string()))?;
        if addresses.is_empty() {
            return Err(unresolved("it has no address".into()));
        }
        for address in &addresses {
            self.check(bare, address.ip())?;
        }
        Ok(addresses)
    }

    /// A client that follows no redirects. Call [`Self::check_url`] before sending with it.
    pub fn client(&self) -> reqwest::Result<reqwest::Client> {
        self.client_builder()
            .redirect(reqwest::redirect::Policy::none())
            .build()
    }

    /// The same, without connections that are kept for later requests.
    pub(crate) fn closing_client(&self) -> reqwest::Result<reqwest::Client> {
        self.client_builder()
            .redirect(reqwest::redirect::Policy::none())
            .pool_max_idle_per_host(0)
            .build()
    }

    /// A client that follows up to [`MAX_REDIRECTS`] redirects, each checked. Call [`Self::check_url`] before sending
    /// with it.
    pub fn redirecting_client(&self) -> reqwest::Result<reqwest::Client> {
        let policy = self.clone();
        let redirects = reqwest::redirect::Policy::custom(move |attempt| {
            if attempt.previous().len() > MAX_REDIRECTS {
                return attempt.error("too many redirects");
            }
            match policy.check_url(attempt.url()) {
                Ok(()) => attempt.follow(),
                Err(refused) => attempt.error(refused),
            }
        });
        self.client_builder().redirect(redirects).build()
    }

    fn client_builder(&self) -> reqwest::ClientBuilder {
        choose_cryptography();
        reqwest::Client::builder()
            .tls_backend_preconfigured(TLS.clone())
            .dns_resolver(PolicyResolver(self.clone()))
            .no_proxy()
            .referer(false)
            .connect_timeout(CONNECT_TIMEOUT)
            .pool_max_idle_per_host(MAX_IDLE_PER_HOST)
            .pool_idle_timeout(IDLE_TIMEOUT)
    }
}

/// TLS with the certificates that this system trusts. They are read once for all clients: 145 take 8 ms.
static TLS: LazyLock<rustls::ClientConfig> = LazyLock::new(|| {
    let mut roots = rustls::RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let mut config = rustls::ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    config
});

/// reqwest uses the process's default cryptography: rustls with ring, unless the program has chosen another.
pub fn choose_cryptography() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // If two threads do this at once, one gets an error, which is harmless.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}

/// The refusal that caused an error of a client made here, if it did.
pub fn refusal<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a Refused> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(refused) = error.downcast_ref::<Refused>() {
            return Some(refused);
        }
        cause = error.source();
    }
    None
}

/// An error with its causes, without the URL: it may hold a secret.
pub fn failure(error: &reqwest::Error) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("the request failed: {}", Chain(cause)),
        None => "the request failed".to_owned(),
    }
}

/// A response's body of at most `limit_bytes`. `Ok(None)`: it is larger.
pub async fn read_bounded(mut response: reqwest::Response, limit_bytes: usize) -> reqwest::Result<Option<Bytes>> {
    if response
        .content_length()
        .is_some_and(|length| length > limit_bytes as u64)
    {
        return Ok(None);
    }
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        if body.len() + chunk.len() > limit_bytes {
            return Ok(None);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(Some(body.into()))
}

struct PolicyResolver(OutboundPolicy);

impl Resolve for PolicyResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let policy = self.0.clone();
        Box::pin(async move {
            // Port 0 means the default port of the scheme.
            let addresses = policy.resolve(name.as_str(), 0).await?;
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}

/// A host that a task may reach: `example.com`, `*.example.com` (at any depth below, not the name itself), an address;
/// each with an optional port. Without a port, any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPattern {
    host: String,
    below: bool,
    port: Option<u16>,
}

impl std::str::FromStr for HostPattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "`{text}` is not a valid host; write for example `example.com` or `*.example.com`, \
            with or without `:port`"
            )
        };
        let (below, rest) = match text.trim().strip_prefix("*.") {
            Some(rest) => (true, rest),
            None => (false, text.trim()),
        };
        let bare_v6 = rest.parse::<Ipv6Addr>().is_ok();
        let (host, port) = match rest.rsplit_once(':') {
            Some((host, port)) if !bare_v6 && !rest.ends_with(']') => (host, Some(port.parse().map_err(|_| wrong())?)),
            _ => (rest, None),
        };
        let host = if bare_v6 { format!("[{host}]") } else { host.to_owned() };
        let host = match Host::parse(&host).map_err(|_| wrong())? {
            Host::Domain(name) => {
                let name = name.trim_end_matches('.');
                // (The parser of URLs accepts more than names have.)
                let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
                if name.is_empty() || !name.bytes().all(is_part) {
                    return Err(wrong());
                }
                name.to_owned()
            }
            Host::Ipv4(_) | Host::Ipv6(_) if below => return Err(wrong()),
            Host::Ipv4(address) => address.to_string(),
            Host::Ipv6(address) => address.to_string(),
        };
        Ok(Self { host, below, port })
    }
}

impl HostPattern {
    /// Whether it includes this host and port.
    pub fn matches(&self, host: &str, port: u16) -> bool {
        self.port.is_none_or(|own| own == port) && self.matches_host(host)
    }

    fn matches_host(&self, host: &str) -> bool {
        let host = host
            .trim_start_matches('[')
            .trim_end_matches(']')
            .trim_end_matches('.')
            .to_ascii_lowercase();
        if self.below {
            host.strip_suffix(&self.host)
                .is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
        } else {
            host == self.host
        }
    }
}

impl std::fmt::Display for HostPattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.below {
            f.write_str("*.")?;
        }
        match (self.port, self.host.contains(':')) {
            (Some(port), true) => write!(f, "[{}]:{port}", self.host),
            (Some(port), false) => write!(f, "{}:{port}", self.host),
            (None, _) => f.write_str(&self.host),
        }
    }
}

fn parse_exception(text: &str) -> Result<Exception, String> {
    let text = text.trim();
    let network = |base: &str, prefix: Option<&str>| -> Option<Exception> {
        let base: IpAddr = base.parse().ok()?;
        let bits = if base.is_ipv4() { 32 } else { 128 };
        let prefix = prefix.map_or(Some(bits), |prefix| {
            prefix.parse().ok().filter(|prefix| *prefix <= bits)
        })?;
        Some(Exception::Network { base, prefix })
    };
    if let Some((base, prefix)) = text.split_once('/') {
        return network(base, Some(prefix)).ok_or(format!(
            "`{text}` is not a valid network; write for example `10.0.0.0/8`"
        ));
    }
    if let Some(single) = network(text.trim_start_matches('[').trim_end_matches(']'), None) {
        return Ok(single);
    }
    text.parse()
        .map(Exception::Host)
        .map_err(|error| format!("{error}, or a network such as `10.0.0.0/8`"))
}

fn contains(base: IpAddr, prefix: u8, address: IpAddr) -> bool {
    let same = |base: u128, address: u128, bits: u32| {
        let rest = bits - u32::from(prefix);
        rest >= bits || base >> rest == address >> rest
    };
    match (base, address) {
        (IpAddr::V4(base), IpAddr::V4(address)) => same(u32::from(base).into(), u32::from(address).into(), 32),
        (IpAddr::V6(base), IpAddr::V6(address)) => {
            prefix == 0
                || u128::from(base) >> (128 - u32::from(prefix)) == u128::from(address) >> (128 - u32::from(prefix))
        }
        _ => false,
    }
}

/// The IPv4 address inside an IPv6 address, if there is one.
fn unwrapped(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address else { return address };
    let s = v6.segments();
    let low = || Ipv4Addr::from((u32::from(s[6]) << 16) | u32::from(s[7]));
    match s {
        // Mapped (::ffff:a.b.c.d), the long deprecated "compatible" (::a.b.c.d), translated (64:ff9b::a.b.c.d).
        [0, 0, 0, 0, 0, 0xffff, _, _] | [0x64, 0xff9b, 0, 0, 0, 0, _, _] => IpAddr::V4(low()),
        [0, 0, 0, 0, 0, 0, high, _] if high != 0 => IpAddr::V4(low()),
        // 6to4.
        [0x2002, a, b, ..] => IpAddr::V4(Ipv4Addr::from((u32::from(a) << 16) | u32::from(b))),
        _ => address,
    }
}

/// Whether clouds give a machine its credentials at this address: link-local ones, and those that some clouds have
/// elsewhere (Alibaba 100.100.100.200, Oracle 192.0.0.192, Azure 168.63.129.16, in IPv6 Amazon and Google).
fn is_metadata(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            let octets = v4.octets();
            octets[..2] == [169, 254] || matches!(octets, [100, 100, 100, 200] | [192, 0, 0, 192] | [168, 63, 129, 16])
        }
        IpAddr::V6(v6) => {
            let s = v6.segments();
            (s[0] & 0xffc0) == 0xfe80 || matches!(s, [0xfd00, 0xec2, ..] | [0xfd20, 0xce, ..])
        }
    }
}

/// Whether anybody on the internet could have this address. After the IANA special-purpose registries.
fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            let [a, b, c, _] = v4.octets();
            !(a == 0
                || a == 10
                || a == 127
                || (a == 100 && (64..128).contains(&b))
                || (a == 169 && b == 254)
                || (a == 172 && (16..32).contains(&b))
                || (a == 192 && b == 168)
                || (a == 192 && b == 0 && (c == 0 || c == 2))
                || (a == 192 && b == 88 && c == 99)
                || (a == 198 && (b == 18 || b == 19))
                || (a == 198 && b == 51 && c == 100)
                || (a == 203 && b == 0 && c == 113)
                || a >= 224)
        }
        IpAddr::V6(v6) => {
            let s = v6.segments();
            // Only 2000::/3 is allocated; of it, 2001::/23 (Teredo and protocols) and documentation are not public.
            (s[0] & 0xe000) == 0x2000
                && !(s[0] == 0x2001 && s[1] < 0x200)
                && !(s[0] == 0x2001 && s[1] == 0xdb8)
                && (s[0] & 0xfff0) != 0x3ff0
        }
    }
}

#[cfg(test)]
mod tests;

//! Options of a node: flag before environment before file before default.

use std::collections::BTreeMap;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clap::Args;
use heddle_http::access::Role;
use heddle_http::access::provider::{CALLBACK, CLAIM_DEFAULT, Provider, ProviderConfig, SCOPES_DEFAULT};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::exit::usage;
use crate::logging::LogFormat;

/// Where a node listens unless told otherwise.
const DEFAULT_LISTEN: &str = "127.0.0.1:8080";
/// Where a node keeps its files unless told otherwise.
const DEFAULT_DATA_DIR: &str = ".heddle";
/// The heading of the sign-in options in the help.
const SIGN_IN: &str = "Sign-in with OpenID Connect";

/// Options that no message names: they are for tests.
const HIDDEN: [&str; 2] = ["clock_skew_ms", "without_short_ways"];

/// Options with their names in the file of `--config`.
pub(crate) trait Named: DeserializeOwned + Default {
    const NAMES: &'static [&'static str];
}

macro_rules! options {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Args, Clone, Debug, Default, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct $name { $($(#[$field_doc])* pub $field: Option<$type>),+ }

        impl Named for $name {
            const NAMES: &'static [&'static str] = &[$(stringify!($field)),+];
        }

        impl $name {
            /// These options; those that are not set are taken from others.
            #[must_use]
            pub fn or(self, others: Self) -> Self {
                Self { $($field: self.$field.or(others.$field)),+ }
            }
        }
    };
}

options! {
    /// The options of a node: on the command line, in the environment (`HEDDLE_` and the name), and in the file.
    NodeOptions {
        /// The address and port to listen on [default: 127.0.0.1:8080]
        #[arg(long, env = "HEDDLE_LISTEN", value_name = "ADDR")]
        listen: String,
        /// The directory for compiled scripts, the node's id and, with `dev`, the database [default: .heddle]
        #[arg(long, env = "HEDDLE_DATA_DIR", value_name = "DIR")]
        data_dir: PathBuf,
        /// Serve only the API, without web pages
        #[arg(long, env = "HEDDLE_NO_UI", num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
        no_ui: bool,
        /// The format of log lines [default: text]
        #[arg(long, env = "HEDDLE_LOG_FORMAT", value_enum, value_name = "FORMAT")]
        log_format: LogFormat,
        /// The log level, or directives such as `info,heddle_engine=debug` [default: info]
        #[arg(long, env = "HEDDLE_LOG", value_name = "LEVEL")]
        log: String,
        /// Private hosts and networks that scripts, HTTP tasks and webhooks may reach, separated by commas
        #[arg(long, env = "HEDDLE_ALLOW_PRIVATE", value_name = "HOSTS")]
        allow_private: String,
        /// The beginning of links in notifications [default: http:// and the address of --listen]
        #[arg(long, env = "HEDDLE_PUBLIC_URL", value_name = "URL")]
        public_url: String,
        /// How long a task run may wait in a queue before the notification `queue_stalled` is sent [default: 10m]
        #[arg(long, env = "HEDDLE_QUEUE_STALLED_AFTER", value_name = "DURATION")]
        queue_stalled_after: String,
        /// The timeout for compiling an uploaded script, at most 1h [default: 60s]
        #[arg(long, env = "HEDDLE_COMPILE_TIMEOUT", value_name = "DURATION")]
        compile_timeout: String,
        /// How long an occurrence of an offer stays available after it is due, less than 1d [default: 12h]
        #[arg(long, env = "HEDDLE_DISPATCH_HORIZON", value_name = "DURATION")]
        dispatch_horizon: String,
        /// The maximum number of repeating offers per audience [default: 100]
        #[arg(long, env = "HEDDLE_MAX_OFFERS", value_name = "N")]
        max_offers: u32,
        /// The key that signs short-lived tokens of devices, at least 32 bytes [default: none, no such tokens]
        #[arg(long, env = "HEDDLE_DEVICE_KEY", hide_env_values = true, value_name = "KEY")]
        device_key: String,
        /// The previous device key; tokens that it signed are still accepted
        #[arg(long, env = "HEDDLE_DEVICE_KEY_PREVIOUS", hide_env_values = true, value_name = "KEY")]
        device_key_previous: String,
        /// The maximum number of requests per second of one token on this node [default: no limit]
        #[arg(long, env = "HEDDLE_RATE_LIMIT", value_name = "N")]
        rate_limit: u32,
        /// Previous secrets keys, separated by commas; they can still decrypt secrets
        #[arg(long, env = "HEDDLE_SECRETS_KEY_PREVIOUS", hide_env_values = true, value_name = "KEYS")]
        secrets_key_previous: String,
        /// The key that encrypts secrets in the database, the same on all nodes, at least 16 characters [default: a key
        /// generated in the data directory]
        #[arg(long, env = "HEDDLE_SECRETS_KEY", hide_env_values = true, value_name = "KEY")]
        secrets_key: String,
        /// The time zone of dates and cron expressions in the compatibility calls [default: Asia/Shanghai]
        #[arg(long, env = "HEDDLE_COMPAT_TIMEZONE", value_name = "ZONE")]
        compat_timezone: String,
        /// The maximum number of attempts that run on this node at the same time [default: 1000]
        #[arg(long, env = "HEDDLE_SLOTS", value_name = "N")]
        slots: u32,
        /// By how much this node's clock pretends to be wrong: for rehearsals, and no option for people
        #[arg(long, env = "HEDDLE_CLOCK_SKEW_MS", hide = true, allow_hyphen_values = true, value_name = "MS")]
        clock_skew_ms: i64,
        /// Short ways that are left out for the general ones, or `all`: for tests that compare them, and no option for people
        #[arg(long, env = "HEDDLE_WITHOUT_SHORT_WAYS", hide = true, value_name = "WAYS")]
        without_short_ways: String,
        /// The address of an OTLP collector (over HTTP) for traces, for example http://127.0.0.1:4318 [default: none,
        /// no traces]
        #[arg(long, env = "HEDDLE_OTLP_ENDPOINT", value_name = "URL")]
        otlp_endpoint: String,
        /// The fraction of runs that are traced, from 0 to 1 [default: 1]
        #[arg(long, env = "HEDDLE_OTLP_SAMPLE", value_name = "PART")]
        otlp_sample: f64,
    }
}

options! {
    /// Further options of `dev`.
    DevOptions {
        /// Do not create the demo
        #[arg(long, env = "HEDDLE_NO_DEMO", num_args = 0..=1, default_missing_value = "true", value_name = "BOOL",
            value_parser = clap::builder::FalseyValueParser::new())]
        no_demo: bool,
        /// The directory with the programs of Postgres [default: search PATH, the distribution's directories and pg_config,
        /// else download]
        #[arg(long, env = "HEDDLE_POSTGRES_BIN", value_name = "DIR")]
        postgres_bin: PathBuf,
    }
}

options! {
    /// Further options of `serve`.
    ServeOptions {
        /// The Postgres of the cluster: postgres://user:password@host/database
        #[arg(long, env = "HEDDLE_DATABASE_URL", hide_env_values = true, value_name = "URL")]
        database_url: String,
        /// The id of this node, the same after each restart [default: generated once and stored in the data
        /// directory]
        #[arg(long, env = "HEDDLE_NODE_ID", value_name = "ID")]
        node_id: String,
        /// The issuer URL of the OpenID Connect provider, exactly as the provider writes it [default: none, sign-in
        /// only with tokens]
        #[arg(long, env = "HEDDLE_OIDC_ISSUER", value_name = "URL", help_heading = SIGN_IN)]
        oidc_issuer: String,
        /// The client id of Heddle at the provider
        #[arg(long, env = "HEDDLE_OIDC_CLIENT_ID", value_name = "ID", help_heading = SIGN_IN)]
        oidc_client_id: String,
        /// The client secret of Heddle at the provider [default: none, only PKCE]
        #[arg(long, env = "HEDDLE_OIDC_CLIENT_SECRET", hide_env_values = true, value_name = "SECRET", help_heading = SIGN_IN)]
        oidc_client_secret: String,
        /// A file that contains the client secret
        #[arg(long, env = "HEDDLE_OIDC_CLIENT_SECRET_FILE", value_name = "PATH", help_heading = SIGN_IN)]
        oidc_client_secret_file: PathBuf,
        /// The scopes that Heddle requests, separated by spaces [default: openid email profile]
        #[arg(long, env = "HEDDLE_OIDC_SCOPES", value_name = "SCOPES", help_heading = SIGN_IN)]
        oidc_scopes: String,
        /// The claim that determines the role of a person: a name, or a JSON pointer such as /realm_access/roles
        /// [default: groups]
        #[arg(long, env = "HEDDLE_OIDC_CLAIM", value_name = "CLAIM", help_heading = SIGN_IN)]
        oidc_claim: String,
        /// The role for each value of the claim: value=role, separated by commas; in the file also a table
        #[arg(long, env = "HEDDLE_OIDC_ROLES", value_name = "ROLES", help_heading = SIGN_IN)]
        oidc_roles: RoleMap,
        /// The role of people whose claim gives no role [default: none, they cannot sign in]
        #[arg(long, env = "HEDDLE_OIDC_DEFAULT_ROLE", value_name = "ROLE", help_heading = SIGN_IN)]
        oidc_default_role: String,
        /// The URL to which the provider sends people back [default: /sign-in/callback below --public-url, or below the
        /// address of the request]
        #[arg(long, env = "HEDDLE_OIDC_REDIRECT_URL", value_name = "URL", help_heading = SIGN_IN)]
        oidc_redirect_url: String,
        /// The name of the provider on the sign-in page [default: its host]
        #[arg(long, env = "HEDDLE_OIDC_NAME", value_name = "NAME", help_heading = SIGN_IN)]
        oidc_name: String,
    }
}

/// Which value of a claim gives which role: `value=role,…`, or a table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "RolesGiven")]
pub struct RoleMap(BTreeMap<String, Role>);

#[derive(Deserialize)]
#[serde(untagged)]
enum RolesGiven {
    Text(String),
    Table(BTreeMap<String, String>),
}

fn role(word: &str) -> Result<Role, String> {
    Role::parse(word)
        .filter(|role| *role != Role::Worker)
        .ok_or_else(|| format!("`{word}` is not a role for people; the roles are viewer, operator, author and admin"))
}

impl TryFrom<RolesGiven> for RoleMap {
    type Error = String;
    fn try_from(given: RolesGiven) -> Result<Self, String> {
        match given {
            RolesGiven::Text(text) => text.parse(),
            RolesGiven::Table(table) => {
                let roles = table.into_iter().map(|(value, word)| Ok((value, role(&word)?)));
                Ok(Self(roles.collect::<Result<_, String>>()?))
            }
        }
    }
}

impl std::str::FromStr for RoleMap {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let pairs = text.split(',').map(str::trim).filter(|pair| !pair.is_empty());
        let roles = pairs.map(|pair| match pair.rsplit_once('=') {
            Some((value, word)) => Ok((value.trim().to_owned(), role(word.trim())?)),
            None => Err(format!("`{pair}` does not have the form value=role")),
        });
        Ok(Self(roles.collect::<Result<_, String>>()?))
    }
}

/// The provider with which people sign in, if one is configured. `public_url`: the URL of the pages.
pub(crate) fn provider(options: &ServeOptions, public_url: Option<&str>) -> Result<Option<Arc<Provider>>> {
    let Some(issuer) = options.oidc_issuer.clone().filter(|issuer| !issuer.is_empty()) else {
        return Ok(None);
    };
    let client_id = options.oidc_client_id.clone();
    let client_id = client_id.ok_or_else(|| {
        usage(
            "--oidc-issuer needs --oidc-client-id, the id of Heddle at the \
        provider",
        )
    })?;
    let secret = match (&options.oidc_client_secret, &options.oidc_client_secret_file) {
        (Some(secret), _) => Some(secret.clone()),
        (None, Some(path)) => {
            let text = std::fs::read_to_string(path);
            let text = text.map_err(|error| usage(format!("cannot read {}: {error}", path.display())))?;
            Some(text.trim_end_matches(['\r', '\n']).to_owned())
        }
        (None, None) => None,
    };
    let default_role = match options.oidc_default_role.as_deref().filter(|word| !word.is_empty()) {
        Some(word) => Some(role(word).map_err(|error| usage(format!("--oidc-default-role: {error}")))?),
        None => None,
    };
    let host = || {
        let url = url::Url::parse(&issuer).ok()?;
        Some(url.host_str()?.to_owned())
    };
    let below = |url: &str| format!("{}{CALLBACK}", url.trim_end_matches('/'));
    let config = ProviderConfig {
        client_id,
        client_secret: secret.filter(|secret| !secret.is_empty()),
        scopes: options.oidc_scopes.clone().unwrap_or_else(|| SCOPES_DEFAULT.into()),
        claim: options.oidc_claim.clone().unwrap_or_else(|| CLAIM_DEFAULT.into()),
        roles: options.oidc_roles.clone().unwrap_or_default().0,
        default_role,
        redirect_url: options.oidc_redirect_url.clone().or_else(|| public_url.map(below)),
        name: options.oidc_name.clone().or_else(host).unwrap_or_default(),
        issuer,
    };
    let provider = Provider::new(config).map_err(|error| usage(format!("sign-in provider: {error}")))?;
    Ok(Some(provider))
}

/// Reads a file for `serve` or `dev`, which has further options: the keys are the options' names with `_`. An option that
/// the command does not have is refused.
pub(crate) fn read_file<O: Named>(path: Option<&Path>) -> Result<(NodeOptions, O)> {
    let Some(path) = path else {
        return Ok(Default::default());
    };
    let text =
        std::fs::read_to_string(path).map_err(|error| usage(format!("cannot read {}: {error}", path.display())))?;
    parse(&text).map_err(|error| usage(format!("{}: {error:#}", path.display())))
}

fn parse<O: Named>(text: &str) -> Result<(NodeOptions, O)> {
    let file: toml::Table = toml::from_str(text)?;
    let names = || NodeOptions::NAMES.iter().chain(O::NAMES).copied();
    if let Some(key) = file.keys().find(|key| names().all(|name| name != key.as_str())) {
        let shown: Vec<&str> = names().filter(|name| !HIDDEN.contains(name)).collect();
        bail!("`{key}` is not an option; the options are {}", shown.join(", "));
    }
    let mut further = toml::Table::new();
    let mut node = toml::Table::new();
    for (key, value) in file {
        let table = match O::NAMES.contains(&key.as_str()) {
            true => &mut further,
            false => &mut node,
        };
        table.insert(key, value);
    }
    Ok((options_of(node)?, options_of(further)?))
}

/// Reads the options in a table. The error is a sentence about the first one whose value is wrong.
fn options_of<O: Named>(table: toml::Table) -> Result<O> {
    // An option is wrong by itself, so alone it has the same error, and this is the error of no other.
    for (key, value) in &table {
        let mut alone = toml::Table::new();
        alone.insert(key.clone(), value.clone());
        if let Err(error) = alone.try_into::<O>() {
            bail!("{}", wrong_value(key, error.message()));
        }
    }
    table.try_into().context("is not valid")
}

/// An error of the library about the value of an option, in the words of people.
fn wrong_value(key: &str, said: &str) -> String {
    let Some((given, wanted)) = said.split_once(", expected ") else {
        return format!("`{key}`: {said}");
    };
    let beginnings = ["invalid type: ", "invalid value: ", "unknown variant "];
    let given = beginnings
        .iter()
        .find_map(|beginning| given.strip_prefix(beginning))
        .unwrap_or(given);
    let wanted = match wanted {
        "u32" => "a whole number from 0 to 4294967295",
        "i64" => "a whole number",
        "f64" => "a number",
        "a boolean" => "`true` or `false`",
        "a string" | "path string" => "a text in quotes",
        other => other,
    };
    // A key that was written without quotes is a secret all the same.
    let is_secret = ["secrets_key", "device_key", "secret", "password", "database_url"];
    match is_secret.iter().any(|word| key.contains(word)) {
        true => format!("`{key}` must be {wanted}"),
        false => format!("`{key}` must be {wanted}, not {given}"),
    }
}

impl NodeOptions {
    /// The address to listen on.
    pub(crate) fn listen_address(&self) -> Result<SocketAddr> {
        let text = self.listen.as_deref().unwrap_or(DEFAULT_LISTEN);
        let with_host = if text.starts_with(':') {
            format!("127.0.0.1{text}")
        } else {
            text.to_owned()
        };
        if let Ok(address) = with_host.parse() {
            return Ok(address);
        }
        let wrong = || {
            usage(format!(
                "`{text}` is not a valid address to listen on; write host:port, for example {DEFAULT_LISTEN}"
            ))
        };
        with_host
            .to_socket_addrs()
            .ok()
            .and_then(|mut found| found.next())
            .ok_or_else(wrong)
    }

    pub(crate) fn data_directory(&self) -> PathBuf {
        self.data_dir.clone().unwrap_or_else(|| DEFAULT_DATA_DIR.into())
    }
}

/// Refuses all but loopback addresses: `heddle dev` has no tokens, so whoever reaches it may do everything.
pub(crate) fn require_loopback(address: SocketAddr) -> Result<()> {
    if address.ip().to_canonical().is_loopback() {
        return Ok(());
    }
    Err(usage(format!(
        "`heddle dev` needs no token, so it can listen only on loopback addresses, and {} is not one; use \
        127.0.0.1:{} or [::1]:{}. To be reachable from other machines, use `heddle serve`",
        address.ip(),
        address.port(),
        address.port()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listen(text: &str) -> Result<SocketAddr> {
        NodeOptions {
            listen: Some(text.into()),
            ..Default::default()
        }
        .listen_address()
    }

    #[test]
    fn addresses_have_a_host_and_a_port() {
        assert_eq!(
            NodeOptions::default().listen_address().unwrap().to_string(),
            DEFAULT_LISTEN
        );
        assert_eq!(listen(":9000").unwrap().to_string(), "127.0.0.1:9000");
        assert!(listen("localhost:80").unwrap().ip().is_loopback());
        for bad in ["8080", "127.0.0.1", "127.0.0.1:99999", ""] {
            assert!(listen(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn only_loopback_will_do_for_dev() {
        for good in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            require_loopback(listen(good).unwrap()).unwrap();
        }
        for bad in ["0.0.0.0:8080", "[::]:8080", "192.168.0.1:8080", "8.8.8.8:80"] {
            let said = require_loopback(listen(bad).unwrap()).unwrap_err().to_string();
            assert!(said.contains("loopback"), "{said}");
        }
    }

    #[test]
    fn a_flag_wins_over_the_file() {
        let text = "listen = \"127.0.0.1:1\"\nmax_offers = 5\ndatabase_url = \"postgres://x\"";
        let (file, serve) = parse::<ServeOptions>(text).unwrap();
        let flags = NodeOptions {
            listen: Some("127.0.0.1:2".into()),
            ..Default::default()
        };
        let merged = flags.or(file);
        assert_eq!(
            (merged.listen.as_deref(), merged.max_offers),
            (Some("127.0.0.1:2"), Some(5))
        );
        assert_eq!(serve.database_url.as_deref(), Some("postgres://x"));
    }

    #[test]
    fn a_value_of_the_wrong_type_is_told_in_a_sentence() {
        for (text, expect) in [
            (
                "listen = \"127.0.0.1:2\"\nslots = \"viele\"\n",
                "`slots` must be a whole number from 0 to 4294967295, not string \"viele\"",
            ),
            ("no_ui = 1", "`no_ui` must be `true` or `false`, not integer `1`"),
            ("database_url = 1", "`database_url` must be a text in quotes"),
            ("log_format = \"xml\"", "`log_format` must be "),
        ] {
            let said = format!("{:#}", parse::<ServeOptions>(text).unwrap_err());
            assert!(said.starts_with(expect) && !said.contains('\n'), "{said}");
        }
    }

    #[test]
    fn values_of_a_claim_become_roles() {
        let roles = |text: &str| text.parse::<RoleMap>().map(|map| map.0);
        let all = roles("ops=operator, cn=chiefs=admin ,").unwrap();
        assert_eq!(all["ops"], Role::Operator);
        assert_eq!(all["cn=chiefs"], Role::Admin, "values may have an equals sign");
        for wrong in ["ops", "ops=chief", "ops=worker", "=x"] {
            assert!(roles(wrong).is_err(), "{wrong}");
        }
        let table = "oidc_roles = { \"CN=ops,OU=x\" = \"author\" }\noidc_issuer = \"https://id.example/a\"";
        let (_, serve) = parse::<ServeOptions>(table).unwrap();
        assert_eq!(serve.oidc_roles.as_ref().unwrap().0["CN=ops,OU=x"], Role::Author);
        let said = format!("{:#}", parse::<ServeOptions>("oidc_roles = \"a=b\"").unwrap_err());
        assert!(said.starts_with("`oidc_roles`: "), "{said}");
        assert!(said.contains("not a role for people"), "{said}");
        let said = provider(&serve, None).unwrap_err().to_string();
        assert!(said.contains("--oidc-client-id"), "{said}");
        let whole = ServeOptions {
            oidc_client_id: Some("heddle".into()),
            ..serve
        };
        let found = provider(&whole, Some("https://heddle.example/")).unwrap().unwrap();
        assert_eq!(found.name(), "id.example");
        assert!(provider(&ServeOptions::default(), None).unwrap().is_none());
    }

    #[test]
    fn what_the_file_does_not_know_is_named() {
        let said = format!("{:#}", parse::<ServeOptions>("lisden = \"x\"").unwrap_err());
        assert!(said.contains("lisden") && said.contains("listen"), "{said}");
        assert!(
            HIDDEN
                .iter()
                .all(|name| NodeOptions::NAMES.contains(name) && !said.contains(name)),
            "{said}"
        );
    }

    #[test]
    fn a_file_has_the_options_of_its_command() {
        let text = "slots = 3\nno_demo = true\npostgres_bin = \"/usr/lib/postgresql\"";
        let (node, dev) = parse::<DevOptions>(text).unwrap();
        assert_eq!((node.slots, dev.no_demo), (Some(3), Some(true)));
        assert_eq!(dev.postgres_bin, Some("/usr/lib/postgresql".into()));
        for text in [
            "database_url = \"postgres://x\"",
            "oidc_issuer = \"https://id.example\"",
        ] {
            let said = format!("{:#}", parse::<DevOptions>(text).unwrap_err());
            assert!(said.contains(&text[..11]), "{said}");
        }
        let said = format!("{:#}", parse::<ServeOptions>("no_demo = true").unwrap_err());
        assert!(said.contains("no_demo"), "{said}");
    }

    #[test]
    fn a_flag_without_a_value_is_on() {
        #[derive(Debug, clap::Parser)]
        struct Line {
            #[command(flatten)]
            dev: DevOptions,
        }
        let no_demo = |line: &[&str]| {
            let words = std::iter::once("dev").chain(line.iter().copied());
            let line: Line = clap::Parser::parse_from(words);
            line.dev.or(parse::<DevOptions>("no_demo = true").unwrap().1).no_demo
        };
        assert_eq!(no_demo(&["--no-demo"]), Some(true));
        assert_eq!(no_demo(&[]), Some(true), "by the file");
        assert_eq!(no_demo(&["--no-demo", "false"]), Some(false));
    }
}

//! The certificates that a mail channel trusts beside those of the system (`smtp.ca`). They are read in the same way when
//! the channel is put and when a mail is sent.

use heddle_domain::Faults;
use heddle_domain::notify::channel::{ChannelSpec, VALUE_MAX_BYTES};
use lettre::transport::smtp::Error;
use lettre::transport::smtp::client::{Certificate, CertificateStore, TlsParameters, TlsParametersBuilder};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

/// The parameters of an encrypted connection that trusts these certificates too.
pub(super) fn trusting(builder: TlsParametersBuilder, ca: Option<&str>) -> Result<TlsParameters, Error> {
    let builder = match ca {
        Some(ca) => builder.add_root_certificate(Certificate::from_pem(ca.as_bytes())?),
        None => builder,
    };
    builder.build()
}

/// What is wrong with the certificates of a channel. No mail could be sent with a wrong one.
pub fn check_ca(spec: &ChannelSpec) -> Faults {
    let mut faults = Faults::default();
    let ca = spec.smtp.as_ref().and_then(|smtp| smtp.ca.as_deref());
    // The check of the spec refuses a longer one.
    let Some(ca) = ca.filter(|ca| ca.len() <= VALUE_MAX_BYTES) else {
        return faults;
    };
    // The library accepts a text without certificates, and then trusts none.
    if CertificateDer::pem_slice_iter(ca.as_bytes()).next().is_none() {
        faults.add(
            "/smtp/ca",
            "this text contains no certificate in PEM format; write the lines from `-----BEGIN CERTIFICATE-----` to \
            `-----END CERTIFICATE-----`",
        );
        return faults;
    }
    // The certificates of the system do not matter here. Reading their files would take time.
    let builder = TlsParameters::builder("localhost".to_owned()).certificate_store(CertificateStore::None);
    if trusting(builder, Some(ca)).is_err() {
        faults.add(
            "/smtp/ca",
            "a certificate in this text cannot be read; write each whole certificate in PEM format, from \
            `-----BEGIN CERTIFICATE-----` to `-----END CERTIFICATE-----`",
        );
    }
    faults
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Made by OpenSSL: `openssl req -x509 -newkey ed25519 -nodes -subj /CN=t`. Nobody has kept the key.
    const GOOD: &str = "-----BEGIN CERTIFICATE-----\n\
        MIIBLjCB4aADAgECAhRjact/cTjRJ9rc2Yw2xXdJ9kLsmzAFBgMrZXAwDDEKMAgG\n\
        A1UEAwwBdDAgFw0yNjExMjcxMzQ4MTdaGA8yMTI2MTEwMzEzNDgxN1owDDEKMAgG\n\
        A1UEAwwBdDAqMAUGAytlcAMhAHNe6DNid6dPgTKNHc4+vSZL7ohUj2Mxd+kMRfW7\n\
        GXhWo1MwUTAdBgNVHQ4EFgQUqZ5C9FCYzYu8G2Zca6ud0ZxeNiMwHwYDVR0jBBgw\n\
        FoAUqZ5C9FCYzYu8G2Zca6ud0ZxeNiMwDwYDVR0TAQH/BAUwAwEB/zAFBgMrZXAD\n\
        QQAiGo7uIRHNR8z1UJCwb3e86TfcKNdYu0dlapopi7L+Y07eIAuZw7ZwWH3yGobF\n\
        kjdzPR+D9rJ2pT0RhnGeK6YD\n\
        -----END CERTIFICATE-----\n";

    #[test]
    fn certificates_are_read_before_they_are_needed() {
        let check = |ca: &str, words: Option<&str>| {
            let spec = json!({"kind": "email", "smtp": {"host": "h", "ca": ca}});
            let spec: ChannelSpec = serde_json::from_value(spec).unwrap();
            let faults = check_ca(&spec).0;
            match (faults.as_slice(), words) {
                ([], None) => {}
                ([fault], Some(words)) => {
                    assert_eq!(fault.pointer, "/smtp/ca");
                    assert!(fault.detail.contains(words), "{ca:?}: {fault}");
                }
                _ => panic!("{ca:?}: {faults:?}"),
            }
        };
        let (none, unreadable) = (Some("contains no certificate"), Some("cannot be read"));
        check(GOOD, None);
        check(&format!("a comment\n{GOOD}{GOOD}"), None);
        for text in [
            "",
            "certificate",
            "see -----BEGIN CERTIFICATE-----",
            "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n",
        ] {
            check(text, none);
        }
        let wrapped = |inside: &str| format!("-----BEGIN CERTIFICATE-----\n{inside}\n-----END CERTIFICATE-----\n");
        for inside in ["", "AAAA", "aGVkZGxl", "not base64!"] {
            check(&wrapped(inside), unreadable);
        }
        check("-----BEGIN CERTIFICATE-----\nAAAA\n", unreadable);
        check(&GOOD[..GOOD.len() - 30], unreadable);
        // One of several.
        check(&format!("{GOOD}{}", wrapped("AAAA")), unreadable);
        assert!(check_ca(&ChannelSpec::default()).is_empty());
    }
}

//! Expiry of certificates. rustls reads the rest of a certificate.

use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;

use super::Certificate;

/// Earliest expiry of a certificate in `chain`, in seconds since 1970; `None` if no certificate states one.
pub fn earliest_expiry(chain: &[Certificate]) -> Option<u64> {
    chain.iter().filter_map(|certificate| not_after(certificate)).min()
}

fn not_after(certificate: &[u8]) -> Option<u64> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    Some(u64::try_from(parsed.validity().not_after.timestamp()).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    fn certificate(expiry: u64) -> Certificate {
        let key = KeyPair::generate().expect("random");
        let mut params = CertificateParams::new(["localhost".to_owned()]).expect("a plain name");
        params.not_after = date_time_ymd(1970, 1, 1) + Duration::from_secs(expiry);
        params.self_signed(&key).expect("a valid key").der().clone()
    }

    #[test]
    fn expiry_is_exact_and_a_chain_expires_with_its_first_certificate() {
        // 2024-02-29; 2049-12-31 and 2050-01-01, where the encoding changes; 2100-03-01, in a year without a leap day.
        for expiry in [1_709_251_199, 2_524_607_999, 2_524_608_000, 4_107_542_400] {
            assert_eq!(earliest_expiry(&[certificate(expiry)]), Some(expiry));
        }
        let chain = [certificate(2_000_000_000), certificate(1_900_000_000), certificate(2_100_000_000)];
        assert_eq!(earliest_expiry(&chain), Some(1_900_000_000));
        assert_eq!(earliest_expiry(&[]), None);
    }

    #[test]
    fn truncated_or_damaged_certificates_do_not_panic() {
        let whole = certificate(2_000_000_000);
        for length in 0..whole.len() {
            assert_eq!(not_after(&whole[..length]), None, "{length} bytes");
        }
        for at in 0..whole.len() {
            for value in [0, 0x7f, 0x80, 0x84, 0xff] {
                let mut damaged = whole.to_vec();
                damaged[at] = value;
                let _ = not_after(&damaged);
            }
        }
    }
}

//! Checks of the host name that a request was sent to, against DNS rebinding. A page of another site can point a name
//! of its own to this address; a browser would then treat this server's responses as that site's. Only configured names
//! and loopback are served, on loopback connections too.

use std::net::IpAddr;

use axum::http::uri::Authority;

/// True when `authority` (`host` or `host:port`) names loopback or one of `names`.
pub fn is_own_name(authority: &str, names: &[String]) -> bool {
    let Ok(authority) = authority.parse::<Authority>() else { return false };
    // A Host header has no `user@`.
    if authority.as_str().contains('@') {
        return false;
    }
    let host = authority.host().trim_end_matches('.');
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let is_loopback = match bare.parse::<IpAddr>() {
        Ok(address) => address.to_canonical().is_loopback(),
        Err(_) => host.eq_ignore_ascii_case("localhost"),
    };
    is_loopback || names.iter().any(|name| name.eq_ignore_ascii_case(bare))
}

/// True when `origin` is the origin of this server's page: the same authority as the request. With TLS only `https`
/// counts, because an unencrypted page can be altered in transit. Without TLS a proxy in front may add it, so both
/// schemes count.
pub fn is_own_origin(origin: &str, authority: &str, is_tls: bool) -> bool {
    let http_authority = || if is_tls { None } else { origin.strip_prefix("http://") };
    let origin_authority = origin.strip_prefix("https://").or_else(http_authority);
    origin_authority.is_some_and(|origin_authority| origin_authority.eq_ignore_ascii_case(authority))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_and_configured_names_are_own_names() {
        let names = ["cache.example".to_owned(), "10.1.2.3".to_owned(), "fd00::7".to_owned()];
        let own_names = [
            "localhost",
            "LocalHost:7400",
            "127.0.0.1",
            "127.0.0.1:7400",
            "127.8.9.1",
            "[::1]:7400",
            "[::ffff:127.0.0.1]:1",
            "cache.example",
            "CACHE.example:80",
            "cache.example.:80",
            "10.1.2.3:7400",
            "[fd00::7]:7400",
        ];
        let foreign_names = [
            "",
            "evil.example",
            "evil.example:7400",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "10.1.2.4",
            "cache.example.evil",
            "xcache.example",
            "cache.example@evil.example",
            "localhost@evil.example",
            "::1",
            "[::2]",
            "127.0.0.1:7400, evil.example",
            "2130706433",
            "a b",
        ];
        assert_eq!(own_names.iter().find(|host| !is_own_name(host, &names)), None);
        assert_eq!(foreign_names.iter().find(|host| is_own_name(host, &names)), None);
    }

    #[test]
    fn origin_is_own_only_with_the_same_authority() {
        for is_tls in [false, true] {
            assert_eq!(is_own_origin("http://127.0.0.1:7400", "127.0.0.1:7400", is_tls), !is_tls);
            assert!(is_own_origin("https://Cache.example", "cache.example", is_tls));
        }
        for other in
            ["null", "", "http://127.0.0.1:7401", "http://evil.example", "127.0.0.1:7400", "ftp://127.0.0.1:7400"]
        {
            assert!(!is_own_origin(other, "127.0.0.1:7400", false), "{other}");
        }
    }
}

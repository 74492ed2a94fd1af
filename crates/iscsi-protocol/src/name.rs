//! iSCSI names (RFC 7143, 4.2.7).

use crate::limits::NAME_BYTES_MAX;
use crate::text::is_control;

/// Checks the name of an initiator or a target. An error reads as the continuation of "the name".
pub fn check(name: &str) -> Result<(), &'static str> {
    if name.len() > NAME_BYTES_MAX {
        return Err("is longer than 223 bytes");
    }
    let suffix = ["iqn.", "eui.", "naa."]
        .iter()
        .find_map(|type_designator| name.get(..4)?.eq_ignore_ascii_case(type_designator).then(|| &name[4..]));
    match suffix {
        None => Err("does not start with iqn., eui. or naa."),
        Some("") => Err("has nothing after its type (iqn., eui. or naa.)"),
        Some(suffix) if suffix.chars().any(|c| is_control(c) || c.is_whitespace() || "=,".contains(c)) => {
            Err("contains white space, a control character, a comma or an equals sign")
        }
        Some(_) => Ok(()),
    }
}

/// True if both names are equal without regard to case (4.2.7.2 requires this normalisation).
pub fn is_same_name(a: &str, b: &str) -> bool {
    a.eq_ignore_ascii_case(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_and_invalid_names_are_told_apart() {
        for good in [
            "iqn.2026-11.io.hotset:lab",
            "IQN.1991-05.com.microsoft:host",
            "eui.02004567A425678D",
            "naa.52004567BA64678D",
        ] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        let long = format!("iqn.{}", "x".repeat(220));
        for bad in ["", "iqn", "iqn.", "host", "iqn.a b", "iqn.a,b", "ï", long.as_str()] {
            assert!(check(bad).is_err(), "{bad}");
        }
    }
}

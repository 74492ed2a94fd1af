//! The address of an image: `rbd:POOL/IMAGE` or `rbd:POOL/NAMESPACE/IMAGE`, with `?ceph_conf=PATH&ceph_user=NAME`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Longest name of a pool, a namespace or an image, in bytes.
const NAME_BYTES_MAX: usize = 255;

/// An image, and the way to its cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageSpec {
    /// The pool.
    pub pool: String,
    /// The namespace in the pool; `None` for the default one.
    pub namespace: Option<String>,
    /// The image.
    pub image: String,
    /// The cluster's configuration; `None` for the files that Ceph reads by default (`/etc/ceph/ceph.conf`).
    pub ceph_conf: Option<PathBuf>,
    /// The user without `client.`; `None` for `admin`.
    pub ceph_user: Option<String>,
}

/// Why the address of an image is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImageSpecError {
    /// It is not of the form `rbd:POOL/IMAGE`.
    #[error("\"{0}\" is not an RBD image; write rbd:POOL/IMAGE or rbd:POOL/NAMESPACE/IMAGE")]
    Form(String),
    /// A name is empty, too long, or has a character that the address cannot express.
    #[error("\"{0}\" is not a name in an RBD address; use 1 to 255 characters without space, control, / ? & % and @")]
    Name(String),
    /// It names a snapshot.
    #[error("\"{0}\" is a snapshot, which cannot be written; clone it with `rbd clone`, and name the clone")]
    Snapshot(String),
    /// A parameter is unknown or repeated.
    #[error("\"{0}\" is not a parameter of an RBD address, or is given twice; use ceph_conf=PATH and ceph_user=NAME")]
    Parameter(String),
    /// The user is given as Ceph's entity.
    #[error("ceph_user is \"{0}\"; write the name without \"client.\"")]
    User(String),
    /// The path of the configuration is not absolute.
    #[error("ceph_conf is \"{0}\"; write an absolute path without space, ? and &")]
    Conf(String),
}

/// True if a text is the address of an image, possibly a malformed one, and no path.
pub fn is_image_address(text: &str) -> bool {
    text.starts_with("rbd:")
}

impl ImageSpec {
    /// The image in its cluster: `POOL/IMAGE` or `POOL/NAMESPACE/IMAGE`, as Ceph's commands write it.
    pub fn place(&self) -> String {
        let namespace = self.namespace.as_ref().map_or(String::new(), |namespace| format!("{namespace}/"));
        format!("{}/{namespace}{}", self.pool, self.image)
    }
}

impl FromStr for ImageSpec {
    type Err = ImageSpecError;

    fn from_str(text: &str) -> Result<Self, ImageSpecError> {
        let form = || ImageSpecError::Form(text.to_owned());
        let (path, query) =
            text.strip_prefix("rbd:").map(|rest| rest.split_once('?').unwrap_or((rest, ""))).ok_or_else(form)?;
        let names: Vec<&str> = path.split('/').collect();
        let (pool, namespace, image) = match names[..] {
            [pool, image] => (pool, None, image),
            [pool, namespace, image] => (pool, Some(namespace), image),
            _ => return Err(form()),
        };
        if image.contains('@') {
            return Err(ImageSpecError::Snapshot(text.to_owned()));
        }
        let namespace = namespace.map(name).transpose()?;
        let (pool, image) = (name(pool)?, name(image)?);
        let mut spec = ImageSpec { pool, namespace, image, ceph_conf: None, ceph_user: None };
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            match parameter.split_once('=') {
                Some(("ceph_conf", path)) if spec.ceph_conf.is_none() => {
                    let is_valid =
                        path.starts_with('/') && !path.contains(|c: char| c.is_control() || " ?".contains(c));
                    let path = Some(PathBuf::from(path)).filter(|_| is_valid);
                    spec.ceph_conf = Some(path.ok_or_else(|| ImageSpecError::Conf(parameter.to_owned()))?);
                }
                Some(("ceph_user", user)) if user.starts_with("client.") => {
                    return Err(ImageSpecError::User(user.to_owned()));
                }
                Some(("ceph_user", user)) if spec.ceph_user.is_none() => spec.ceph_user = Some(name(user)?),
                _ => return Err(ImageSpecError::Parameter(parameter.to_owned())),
            }
        }
        Ok(spec)
    }
}

fn name(text: &str) -> Result<String, ImageSpecError> {
    let is_valid = (1..=NAME_BYTES_MAX).contains(&text.len())
        && !text.contains(|c: char| c.is_control() || c.is_whitespace() || "/?&%@".contains(c));
    if is_valid { Ok(text.to_owned()) } else { Err(ImageSpecError::Name(text.to_owned())) }
}

impl fmt::Display for ImageSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rbd:{}", self.place())?;
        let conf = self.ceph_conf.as_ref().map(|path| format!("ceph_conf={}", path.display()));
        let user = self.ceph_user.as_ref().map(|user| format!("ceph_user={user}"));
        let parameters: Vec<String> = conf.into_iter().chain(user).collect();
        if parameters.is_empty() { Ok(()) } else { write!(f, "?{}", parameters.join("&")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn displayed_address_parses_to_the_same_image() {
        for text in ["rbd:vms/web", "rbd:vms/blue/web", "rbd:vms/web?ceph_conf=/etc/ceph/b.conf&ceph_user=hotset"] {
            let spec: ImageSpec = text.parse().expect(text);
            assert_eq!(spec.to_string(), text);
        }
        let spec: ImageSpec = "rbd:p/n/i?ceph_user=u".parse().expect("valid");
        let (namespace, user) = (Some("n".to_owned()), Some("u".to_owned()));
        let expected = ImageSpec { pool: "p".into(), namespace, image: "i".into(), ceph_conf: None, ceph_user: user };
        assert_eq!(spec, expected);
    }

    #[test]
    fn malformed_address_is_rejected_with_a_remedy() {
        for text in [
            "rbd:web",
            "rbd://vms/web",
            "rbd:a/b/c/d",
            "rbd:/web",
            "rbd:vms/",
            "rbd:vms/we b",
            "rbd:vms/web@snap",
            "rbd:vms/web?size=3",
            "rbd:vms/web?ceph_conf=ceph.conf",
            "rbd:vms/web?ceph_user=a&ceph_user=b",
            "rbd:vms/web?ceph_user=",
            "rbd:vms/web?ceph_user=client.hotset",
            "rbd:vms/web?ceph_conf=/etc/ceph?.conf",
            "nbd:vms/web",
        ] {
            let error = text.parse::<ImageSpec>().expect_err(text).to_string();
            assert!(error.contains("; ") || error.contains(", "), "{text}: {error}");
        }
    }
}

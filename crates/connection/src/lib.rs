//! Mechanisms that front ends share so that no client delays the others: the duplex loop of a connection ([`Duplex`]),
//! its end on request ([`Control`]), the list of clients ([`Clients`]), and the lending of pool buffers to replies
//! ([`BufferAccount`]).

mod account;
mod budget;
mod clients;
mod control;
mod duplex;

pub use account::{BufferAccount, Loan, buffer_bytes};
pub use clients::{Clients, Limits};
pub use control::{Control, Stop};
pub use duplex::{Duplex, DuplexOutcome, Protocol};

//! The rows of one port: merged endpoints with their times.

use std::net::IpAddr;
use std::num::NonZeroU16;

use holdfast_core::list::{Row, RowParts, Rows};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
pub(super) struct RowForm {
    address: IpAddr,
    port: NonZeroU16,
    bits: u8,
    slice: u16,
    endpoint: u16,
    since: u32,
}

impl From<&Row> for RowForm {
    fn from(row: &Row) -> Self {
        let RowParts { address, port, bits, slice, endpoint, since } = row.to_parts();
        Self { address, port, bits, slice, endpoint, since }
    }
}

impl From<RowForm> for Row {
    fn from(form: RowForm) -> Self {
        let RowForm { address, port, bits, slice, endpoint, since } = form;
        Self::from_parts(RowParts { address, port, bits, slice, endpoint, since })
    }
}

pub(super) fn forms(rows: &Rows) -> Vec<RowForm> {
    rows.all().iter().map(RowForm::from).collect()
}

pub(super) fn rows(forms: Vec<RowForm>) -> Option<Rows> {
    Rows::remembered(forms.into_iter().map(Row::from).collect())
}
